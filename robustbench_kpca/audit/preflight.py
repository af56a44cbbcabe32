"""Refuse to attack a model if the result would be meaningless, and say how to fix the model.

Every check runs the model on the first clean images. A failed check that the user allows is recorded as a flag. The
limits were chosen before any model was examined.

A mask in every softmax is not enough to hide later words from a language model: in RPC attention with one mu for the
whole window, mu carries the sum of all keys to every place. In evaluation a stride of 1 hides such a leak, since only
the last place is scored; training does not.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError, BenchmarkError
from robustbench_kpca._core.registry import did_you_mean
from robustbench_kpca._engine.attack_loop.query import check_clean
from robustbench_kpca._engine.inference.edge import NUDGE, gradients_inside, is_blind
from robustbench_kpca._engine.inference.mode import frozen
from robustbench_kpca._engine.inference.runner import FEW, Runner
from robustbench_kpca.attacks.shared.losses import pixelwise_cross_entropy
from robustbench_kpca.data.forms import Form
from robustbench_kpca.models.source import is_differentiable
from robustbench_kpca.records.audit_versions import LATEST, LIMITS
from robustbench_kpca.types import Images, Labels, LanguageModel, Logits

LogitsOfFirst: TypeAlias = Float[Tensor, "first class *place"]
"""Logits of the first images of a batch, or of all."""

_LIMITS = LIMITS[LATEST]
REPEATED = _LIMITS["repeated_logits"]  # largest relative change of logits between two passes on the same batch
BATCH_MATES = _LIMITS["batch_logits"]  # the same when the other images of the batch are replaced
ROUNDING = _LIMITS["rounding"]  # largest rounding error of logits due to a common offset, relative to their spread
LOST = _LIMITS["lost_losses"]  # largest fraction of samples whose cross-entropy is rounded to zero
CUTS = 16
AT_EDGE = (
    f"gradients are taken {NUDGE:g} inside the box: those of the model are zero where a pixel is exactly 0 or 1, as "
    "behind clamp(0, 1), relu or abs; leave such an operation out: it changes no answer"
)


@dataclass(frozen=True)
class Finding:
    """A preflight check that failed: its name, what was measured, and what to do."""

    check: str
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.check}: {self.problem}"


CHECKS = {
    "stochastic": "two forward passes on the same images give the same logits",
    "batch": "an image's logits do not depend on the other images of its batch",
    "probabilities": "the outputs are logits, not probabilities",
    "offset": "the logits do not lose precision to a large common offset",
    "vanishing-loss": "the cross-entropy is not rounded to zero, which would make its gradient zero too",
    "future": "the logits at a place of a text do not depend on later words, which they are to predict",
}


def preflight(
    runner: Runner, images: Images, labels: Labels, allow: Collection[str] = (), *, causal: bool = False
) -> list[Finding]:
    """Run every check; refuse the model at the first failed check that is not allowed, and return the allowed ones.

    Args:
        runner: runs the model at its batch size.
        images: at most one batch.
        labels: labels of these images, or of their places.
        allow: names in `CHECKS` that may fail.
        causal: whether no place may depend on later ones.

    Raises:
        BadInputError: a failed check that is not allowed, or an unknown name in `allow`.
    """
    return accepted(inspect(runner, images, labels, causal=causal), allow, "attacks on this model")


def accepted(findings: list[Finding], allow: Collection[str], what: str) -> list[Finding]:
    """Return failed checks that are all allowed; `what` would be meaningless if they were not.

    Raises:
        BadInputError: a failed check that is not allowed, or an unknown name in `allow`.
    """
    for name in allow:
        if name not in CHECKS:
            raise BadInputError(f"there is no preflight check '{name}'", fix=did_you_mean(name, CHECKS))
    for finding in findings:
        if finding.check not in allow:
            raise BadInputError(
                f"{what} would be meaningless: {finding.problem}", fix=f"{finding.fix}; or --allow {finding.check}"
            )
    return findings


def as_flags(findings: list[Finding]) -> list[str]:
    """Return failed checks that were allowed as flags of a record."""
    return [f"preflight, allowed: {finding}" for finding in findings]


def at_edge(runner: Runner, images: Images, form: Form) -> list[str]:
    """Take gradients inside the box if the model has none at its edge, and return a remark on that.

    A ninth of the pixels is rounded to 0 or 1, where attacks put those of any image. This takes one gradient of a
    few images, and a second one where slopes are zero. A model without gradients, or whose fail, is left as it is.
    """
    if not form.box or not is_differentiable(runner.model):
        return []
    probe = runner.of_few()
    edged = images[: probe.batch_size].clone()
    edged[..., ::3, ::3] = edged[..., ::3, ::3].round()  # apart: black areas are edges of any relu without a bias
    try:
        with frozen(runner.model):
            blind = is_blind(probe.gradient, edged)
    except BenchmarkError:  # an attack by gradients will meet it
        return []
    if not blind:
        return []
    runner.presentation = gradients_inside(runner.presentation)
    return [AT_EDGE]


def inspect(runner: Runner, images: Images, labels: Labels, *, causal: bool = False) -> list[Finding]:
    """Run every check and return those that failed."""
    logits = runner.clean_logits(images)
    check_clean(logits, labels)
    spread = spread_of(logits)
    again, beside = changes(runner, images, logits, (len(images) + 1) // 2)
    findings = [
        None if again <= REPEATED else unrepeatable(again),
        None if beside <= BATCH_MATES else mixed(beside),
        probabilities(logits),
        _offset(logits, spread),
        _vanishing(logits, labels),
    ]
    return [finding for finding in findings if finding is not None] + (leaks(runner, images) if causal else [])


def spread_of(logits: Logits) -> float:
    """Return the largest distance of a logit from the mean of its image."""
    return float((logits - logits.mean(1, keepdim=True)).abs().amax().clamp_min(1e-30))


def changes(runner: Runner, images: Images, logits: LogitsOfFirst, count: int) -> tuple[float, float]:
    """Return how far logits change in a second pass, and beside other images, in units of their spread.

    A few images are shown without the others. If a bit of their logits differs, perhaps by the size, the batch is shown
    with all images but the first `count` replaced. Only if the logits of these change, it is shown as it was, which
    tells whether its company or the repetition changed them.

    Args:
        runner: runs the model; with several draws company is not asked for, since other images get different noise.
        images: the batch.
        logits: the answers to it, or to the first of its images.
        count: number of images that stay.
    """
    few = min(FEW, count)
    if runner.agrees_apart(*(part[:few].to(runner.device) for part in (images, logits))):
        return 0.0, 0.0
    beside = change_of(runner, beside_others(images, count), logits[:count]) if runner.draws == 1 else 0.0
    repeated = runner.draws == 1 and beside <= REPEATED
    return 0.0 if repeated else change_of(runner, images, logits), beside


def change_of(runner: Runner, images: Images, logits: LogitsOfFirst) -> float:
    """Return how far the logits of the first images change when the batch is shown now, in units of their spread."""
    now = runner.logits(images.to(runner.device))[: len(logits)].to(logits)
    return float((now.nan_to_num(0.0, 1.0, -1.0) - logits).abs().amax()) / spread_of(logits)


def unrepeatable(change: float) -> Finding:
    """Return the finding that two passes differ by this share of the logits' spread."""
    return Finding(
        "stochastic",
        f"two forward passes on the same images differ by {change:.1e} of the logits' spread",
        "switch off the noise, or use an attack with expectation over transformation",
    )


def beside_others(images: Images, count: int) -> Images:
    """Return the batch with all images but the first `count` replaced by copies of the first."""
    return torch.cat([images[:count], images[:1].expand(len(images) - count, *images.shape[1:])])


def leaks(runner: Runner, words: Images) -> list[Finding]:
    """Change later words of the first text of a batch, and find places whose logits change; see `leaking_places`."""
    model: LanguageModel = runner.model  # type: ignore[assignment] # of a task whose models are
    leaking, places = int(leaking_places(model, words[:1].to(runner.device)).sum()), words.shape[-1]
    if not leaking:
        return []
    return [
        Finding(
            "future",
            f"the logits at {leaking} of {places} places change with later words, so it sees what it is to predict",
            "choose an attention that sees the past only, such as RPC with mu_span = 'past'",
        )
    ]


def mixed(change: float) -> Finding:
    """Return the finding that logits change by this share of their spread with the other images of the batch."""
    return Finding(
        "batch",
        f"an image's logits change by {change:.1e} of their spread with the other images of its batch",
        "call model.eval(), and remove batch statistics from the forward pass",
    )


def probabilities(logits: Logits) -> Finding | None:
    """Return the finding that the outputs are probabilities; None where they are not."""
    inside = bool(((logits >= 0) & (logits <= 1)).all())
    total = logits.sum(1)
    if not inside or not torch.allclose(total, torch.ones_like(total), atol=1e-5):
        return None
    return Finding(
        "probabilities",
        "its outputs are probabilities (in [0, 1], sum 1), so a second softmax would be applied to them",
        "return logits",
    )


def _offset(logits: Logits, spread: float) -> Finding | None:
    rounding = float(logits.abs().amax()) * torch.finfo(torch.float32).eps / spread
    if rounding <= ROUNDING:
        return None
    return Finding(
        "offset",
        f"its logits have a common offset so large that they are rounded by {rounding:.1e} of their spread",
        "subtract the offset, if necessary in double precision",
    )


def _vanishing(logits: Logits, labels: Labels) -> Finding | None:
    right = logits.argmax(1) == labels
    if not bool(right.any()):
        return None
    losses = pixelwise_cross_entropy(logits, labels)[right]
    share = float((losses == 0).float().mean())
    if share <= LOST:
        return None
    return Finding(
        "vanishing-loss",
        f"the cross-entropy of {100 * share:.0f} % of the labels is rounded to zero, and so is its gradient",
        "divide the logits by a temperature, which does not change predictions",
    )


@torch.no_grad()
def leaking_places(model: LanguageModel, words: Images, cuts: int = CUTS) -> Tensor:
    """Tell at which places logits change, by any amount, when later words are changed; bool (batch, length).

    Every word from a cut on is replaced by the next of the vocabulary, in one forward pass a cut. The passes have the
    same shape, so equal inputs give equal logits, to the bit. A model that draws noise is found to leak everywhere.

    A leak shows only where it changes something. RPC attention with one mu for the window, for example, does not depend
    on mu while its sparse part is empty, as it often is in an untrained model.

    Args:
        model: in evaluation mode.
        words: by number, (batch, 1, 1, length), on the model's device.
        cuts: number of places that are changed first, evenly spread; at least `length` - 1 tries every place.
    """
    length = words.shape[-1]
    leaking = torch.zeros(len(words), length, dtype=torch.bool, device=words.device)
    clean = model(words)
    count = min(cuts, length - 1)
    for number in range(count):
        cut = 1 + number * (length - 1) // count
        changed = words.clone()
        changed[..., cut:] = (changed[..., cut:] + 1) % model.vocab_size
        differs = (model(changed)[..., :cut] != clean[..., :cut]).flatten(2).any(1)  # logits of any word
        leaking[:, :cut] |= differs
    return leaking
