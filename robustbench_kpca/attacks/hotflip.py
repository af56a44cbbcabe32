"""HotFlip: replace the words for which the gradient promises the largest growth of the loss, one at a time.

Ebrahimi, Rao, Lowd & Dou (2018), "HotFlip: White-Box Adversarial Examples for Text Classification", arXiv:1712.06751,
section 3: the derivative with respect to a word, written as a distribution that has 1 in one place, ranks all swaps.
Theirs are of letters first, found by a beam; here they are of words (their section 5), found greedily, and the best few
by rank are shown to the model, which decides. A swap is no small step, so the derivative is taken further and further
from the words.
"""

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks.shared.ball import require_norm
from robustbench_kpca.attacks.shared.losses import cross_entropy
from robustbench_kpca.attacks.shared.rows import choose
from robustbench_kpca.attacks.shared.words import Distributions, changed, distributions, fixed, gains
from robustbench_kpca.protocols.scenario import Count
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import END_OF_LINE, Images, Keys, Labels, PerSample, Query, State

NEVER = -torch.inf


@dataclass(frozen=True, config=FORBID)
class HotFlip:
    """Greedy search for at most k = max(1, floor(eps * words)) replaced words.

    Step s = 0, 1, ... takes the gradient g between the words found so far, w, and all words alike: at s / `steps` of
    the way. It ranks every swap (t, v) by g[v, t] - g[w_t, t]. The `tries` best ones that were not yet tried at these
    words are shown, each alone, by plain passes. The one of highest loss is kept if it raises the loss.

    A swap may also put a clean word back. With k words replaced, a swap at another place puts back the clean word that
    costs least, by its own gain, which is added to that of the swap. With k = 1 every step begins at the clean words,
    so no swap is shown twice.

    A sample costs `steps` backward and `steps` (1 + `tries`) + 1 forward passes per restart. At most `steps` words are
    replaced.
    """

    version: ClassVar[int] = 1
    replaces_words: ClassVar[bool] = True
    most_passes: ClassVar[tuple[str, str]] = ("steps * (1 + tries) + 1", "steps")
    steps: Count
    tries: Count

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin with the clean words; `tried` holds swaps by number, 0 for none (see `_ranked`)."""
        require_norm(threat, "hotflip", "words")
        return {
            "x": x,
            "clean": x,
            "y": y,
            "loss": torch.zeros(len(keys), dtype=torch.float64, device=x.device),
            "tried": keys.new_zeros(len(keys), self.steps * self.tries),
            "step": torch.zeros_like(keys),
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Show the best swaps, and keep the one of highest loss if it is higher than without."""
        x, y, step = state["x"], state["y"], state["step"]
        single = threat.swaps(x.shape[3]) == 1
        words = state["clean"] if single else x
        begin = state | {"x": words}
        words_shown = _towards_all(words, query.classes, step / self.steps)
        first_loss, gradient = query.gradient(words_shown, lambda logits: cross_entropy(logits, y))
        loss = torch.where(step > 0, state["loss"], first_loss.double())
        swaps, back = _ranked(gains(gradient, words), begin, threat, self.tries)
        texts = [_swapped(begin, swap, back) for swap in swaps.T]
        losses = torch.stack([cross_entropy(logits, y).double() for logits in query.logits_of_each(texts)], 1)
        highest = losses.amax(1)
        better = highest > loss
        best = _swapped(begin, swaps.gather(1, losses.argmax(1, keepdim=True))[:, 0], back)
        tried = torch.cat([swaps, state["tried"]], 1)[:, : self.steps * self.tries]
        return state | {
            "x": choose(better, best, x),
            "loss": torch.where(better, highest, loss),
            "tried": tried if single else torch.where(better[:, None], 0, tried),
            "step": step + 1,
            "finished": step + 1 >= self.steps,
        }


def _towards_all(words: Images, vocabulary: int, share: PerSample) -> Distributions:
    """Return distributions that give `share` to all words alike but the end of a line, and the rest to the word."""
    pure = distributions(words, vocabulary)
    uniform = words.new_full((1, vocabulary, 1, 1), 1 / (vocabulary - 1))
    uniform[:, END_OF_LINE] = 0
    return pure.lerp_(uniform, share.to(words.dtype).view(-1, 1, 1, 1) * ~fixed(words))


def _ranked(gain: Tensor, state: State, threat: Threat, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` swaps of largest gain that are allowed and were not tried, (batch, count), and what goes back.

    A swap that puts word v at place t has the number v * length + t; 0 stands for none, and is what is left where too
    few are allowed: it would write the end of a line. Among equal gains, the lowest number comes first. The second
    result is the place whose clean word is put back if another place is to change, -1 where none has to go, (batch,).
    """
    x, clean, length = state["x"], state["clean"], state["x"].shape[3]
    different = changed(x, clean)
    full = different.flatten(1).sum(1) >= threat.swaps(length)
    returned, back = gain.gather(1, clean.long()).masked_fill(~different, NEVER).flatten(1).max(1)
    exchange = full.view(-1, 1, 1, 1) & ~different
    gain = torch.where(exchange, gain + returned.view(-1, 1, 1, 1), gain)
    gain = gain.masked_fill_(fixed(clean), NEVER).scatter_(1, x.long(), NEVER)
    gain[:, END_OF_LINE] = NEVER
    gain = gain.flatten(1).scatter_(1, state["tried"], NEVER)
    swaps = []
    for _ in range(count):
        largest, swap = gain.max(1)
        swaps.append(torch.where(largest > NEVER, swap, 0))
        gain.scatter_(1, swap[:, None], NEVER)
    return torch.stack(swaps, 1), torch.where(full, back, -1)


def _swapped(state: State, swap: Tensor, back: Tensor) -> Images:
    """Return the texts with one swap made, and the clean word put back where that is due; with swap 0 as they are."""
    x, clean, length = state["x"].flatten(1), state["clean"].flatten(1), state["x"].shape[3]
    place, back = (swap % length)[:, None], back[:, None]
    old = x.gather(1, place)
    word = torch.where(swap[:, None] > 0, (swap[:, None] // length).to(x.dtype), old)
    text = x.scatter(1, place, word)
    due = (back >= 0) & (old == clean.gather(1, place)) & (swap[:, None] > 0)
    place_back = back.clamp_min(0)
    text = text.scatter(1, place_back, torch.where(due, clean.gather(1, place_back), text.gather(1, place_back)))
    return text.view_as(state["x"])


ATTACK = HotFlip
