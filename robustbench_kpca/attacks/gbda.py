"""GBDA: climb the expected loss over a distribution of texts, by gradients through the Gumbel-softmax.

Guo, Sablayrolles, Jegou & Kiela (2021), "Gradient-based Adversarial Attacks against Text Transformers",
arXiv:2104.13733, section 3. Theirs keeps the text fluent and close in meaning, by the perplexity under another language
model and by BERTScore. Neither is here: the number of replaced words is bounded instead.
"""

from typing import Annotated, ClassVar

import torch
from jaxtyping import Float, Int64
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._adam import adam
from robustbench_kpca.attacks.shared.ball import require_norm
from robustbench_kpca.attacks.shared.draws import uniforms
from robustbench_kpca.attacks.shared.losses import cross_entropy
from robustbench_kpca.attacks.shared.rows import choose
from robustbench_kpca.attacks.shared.words import Distributions, distributions, fixed, gains
from robustbench_kpca.protocols.scenario import Count
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import END_OF_LINE, Images, Keys, Labels, Query, State

Positive = Annotated[float, Field(gt=0)]
Weights = Float[Tensor, "batch place choice"]
Choices = Int64[Tensor, "batch place choice"]


@dataclass(frozen=True, config=FORBID)
class GBDA:
    """Adam on weights theta of the clean word and of `candidates` others at every place; at most k words are replaced.

    A step draws p = softmax((theta + Gumbel noise) / temperature) at every place. The model is shown p at the k places
    where it has the least mass on the clean word, and the clean words elsewhere. The gradient by p, at all places, is
    passed on to theta. A change has a price, halfway between the gains, to first order, of the k-th best place and the
    next: where others gain more, theta returns to the clean word. Then `samples` texts are drawn, again with k places
    at most, and shown by plain passes. Only these count.

    The first gradient is taken at the clean text; the candidates of a place are the words of largest gain there. theta
    begins with `initial` for the clean word, 0 for others. A sample costs `steps` backward and `steps` (1 + `samples`)
    + 1 forward passes per restart.
    """

    version: ClassVar[int] = 1
    replaces_words: ClassVar[bool] = True
    most_passes: ClassVar[tuple[str, str]] = ("steps * (1 + samples) + 1", "steps")
    steps: Count
    samples: Count
    candidates: Count
    learning_rate: Positive
    temperature: Positive
    initial: Annotated[float, Field(ge=0)]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin at the clean words, without candidates."""
        require_norm(threat, "gbda", "words")
        zero = x.new_zeros(len(x), x.shape[3], 1 + self.candidates)
        return {
            "x": x,
            "clean": x,
            "y": y,
            "key": keys,
            "loss": torch.full(keys.shape, -torch.inf, dtype=torch.float64, device=x.device),
            "choices": zero.long(),
            "theta": zero,
            "mean": zero,
            "square": zero,
            "step": torch.zeros_like(keys),
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Climb once, then show some texts."""
        clean, y, step, theta = state["clean"], state["y"], state["step"], state["theta"]
        first, most = step == 0, threat.swaps(clean.shape[3])
        soft = self._draw(state, theta, 0)
        mixed = _spread(_projected(soft, most), state["choices"], query.classes)
        words = choose(first, distributions(clean, query.classes), mixed)
        _, gradient = query.gradient(words, lambda logits: cross_entropy(logits, y))
        choices = choose(first, _best(gains(gradient, clean), clean, self.candidates), state["choices"])
        theta = choose(first, self._begun(choices).to(theta.dtype), theta)
        soft = choose(first, self._draw(state, theta, 0), soft)
        slope = _slope(soft, _at(gradient, choices), choices, most) / self.temperature
        move, mean, square = adam(slope, state["mean"], state["square"], step, self.learning_rate)
        theta = theta + move
        texts = [_text(_projected(self._draw(state, theta, 1 + n), most), choices) for n in range(self.samples)]
        losses = torch.stack([cross_entropy(logits, y).double() for logits in query.logits_of_each(texts)], 1)
        x, loss = state["x"], state["loss"]
        for text, drawn_loss in zip(texts, losses.T, strict=True):
            x, loss = choose(drawn_loss > loss, text, x), torch.maximum(drawn_loss, loss)
        return state | {
            "x": x,
            "loss": loss,
            "choices": choices,
            "theta": theta,
            "mean": mean,
            "square": square,
            "step": step + 1,
            "finished": step + 1 >= self.steps,
        }

    def _begun(self, choices: Choices) -> Weights:
        """Return the first weights. Where candidates are missing, the clean word stands again, and is never drawn."""
        theta = torch.where(choices == choices[..., :1], -torch.inf, 0.0)
        theta[..., 0] = self.initial
        return theta

    def _draw(self, state: State, theta: Weights, number: int) -> Weights:
        """Draw a distribution at every place (Guo et al. 2021, equation 2); each step has draws by number."""
        counters = state["step"] * (1 + self.samples) + number
        u = uniforms(state["key"], counters, theta[0].numel()).clamp_min(_TINY)
        noise = -(-u.log()).log()
        return ((theta + noise.view(theta.shape).to(theta.dtype)) / self.temperature).softmax(2)


_TINY = 2.0**-54
"""Stands for a draw of 0, whose logarithm is infinite."""


def _projected(soft: Weights, most: int) -> Weights:
    """Return the clean word everywhere but at the `most` places with the least mass on it."""
    order = soft[..., 0].argsort(dim=1, stable=True)
    changeable = torch.zeros_like(soft[..., 0], dtype=torch.bool).scatter(1, order[:, :most], value=True)
    clean = torch.zeros_like(soft)
    clean[..., 0] = 1
    return torch.where(changeable[..., None], soft, clean)


def _spread(soft: Weights, choices: Choices, vocabulary: int) -> Images:
    """Write weights of choices as distributions over all words, (batch, vocabulary, 1, place)."""
    wide = soft.new_zeros(len(soft), vocabulary, 1, soft.shape[1])
    return wide.scatter_add_(1, choices.transpose(1, 2)[:, :, None], soft.transpose(1, 2)[:, :, None])


def _at(gradient: Images, choices: Choices) -> Weights:
    return gradient.gather(1, choices.transpose(1, 2)[:, :, None])[:, :, 0].transpose(1, 2)


def _text(soft: Weights, choices: Choices) -> Images:
    return choices.gather(2, soft.argmax(2, keepdim=True))[..., 0][:, None, None].to(soft.dtype)


def _best(gain: Distributions, clean: Images, count: int) -> Choices:
    """Return the clean word and the `count` words of largest gain at every place; the clean word where none is left."""
    gain = gain.masked_fill(fixed(clean), -torch.inf).scatter_(1, clean.long(), -torch.inf)
    gain[:, END_OF_LINE] = -torch.inf
    value, word = gain[:, :, 0].topk(min(count, gain.shape[1]), dim=1)
    clean_word = clean[:, 0].long()
    word = torch.where(value > -torch.inf, word, clean_word)
    missing = clean_word.expand(-1, count - word.shape[1], -1)
    return torch.cat([clean_word, word, missing], 1).transpose(1, 2)


def _slope(soft: Weights, gradient: Weights, choices: Choices, most: int) -> Weights:
    """Return the derivative by temperature * theta of the expected gain, less the price of a change."""
    gain = gradient - gradient[..., :1]
    other = choices != choices[..., :1]
    best = gain.masked_fill(~other, -torch.inf).amax(2).sort(1, descending=True).values
    price = best[:, most - 1 : most + 1].mean(1).clamp_min(0) if best.shape[1] > most else torch.zeros_like(best[:, 0])
    net = torch.where(other, gain - price.view(-1, 1, 1), 0)
    return soft * (net - (soft * net).sum(2, keepdim=True))


ATTACK = GBDA
