"""The first batch of an evaluation, shown again: before it, beside other images; after it, to see what has changed.

These passes are not counted as passes of the evaluation.
"""

from collections.abc import Collection
from contextlib import suppress
from copy import copy
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustbench_kpca._core.errors import BenchmarkError, EvaluationError
from robustbench_kpca._engine.inference.mode import frozen
from robustbench_kpca._engine.inference.runner import FEW, Runner
from robustbench_kpca.audit import preflight
from robustbench_kpca.models.certified import Certified
from robustbench_kpca.types import Images, Logits

_OTHER_GRADIENT = 0.01
"""The largest change of a gradient, relative to its largest value; kernels of GPUs that sum in any order do less."""


@dataclass(frozen=True)
class FirstBatch:
    """The first inputs of a model, and the logits of the first of them."""

    images: Images
    logits: Float[Tensor, "first class *place"]
    batch_size: int
    versions: dict[str, int]

    @classmethod
    def of(cls, runner: Runner, images: Images, logits: Logits) -> "FirstBatch":
        """Keep what is needed to show the batch again; `logits` are the answer to it."""
        return cls(images, _first_rows(logits), runner.batch_size, _versions(runner.model))

    def preflight(self, runner: Runner, allow: Collection[str], *, causal: bool = False) -> list[preflight.Finding]:
        """Check what every evaluation needs: logits, passes that can be repeated, and images apart from their batch.

        Costs a pass over a few images, and up to two over the batch if a bit changed. Limits and names are those of
        `audit.preflight`. `causal`: also that no place depends on later ones.

        Raises:
            BadInputError: a failed check that is not allowed, or an unknown name in `allow`.
        """
        findings = [finding] if (finding := preflight.probabilities(self.logits)) is not None else []
        unchanged = min(FEW, (len(self.images) + 1) // 2)
        again, beside = preflight.changes(runner, self.images, self.logits, unchanged)
        if again > preflight.REPEATED:
            findings.append(preflight.unrepeatable(again))
        elif beside > preflight.BATCH_MATES:
            findings.append(preflight.mixed(beside))
        findings += (
            preflight.leaks(runner, self.images) if causal and runner.draws == 1 else []
        )  # else noise differs, too
        return preflight.accepted(findings, allow, "an evaluation of this model")

    def again(self, runner: Runner, allow: Collection[str]) -> list[str]:
        """Show the batch after the evaluation, and ask again for the first gradient of an attack; return remarks.

        The audit's code asks, so a model that gives other gradients to whoever is no audit is found here.

        Raises:
            EvaluationError: the logits are no longer the same, or the model is in training mode. Remarks if `allow`
                has `stochastic`.
        """
        remarks = []
        limit = (
            preflight.REPEATED if runner.batch_size == self.batch_size else preflight.BATCH_MATES
        )  # sums in another order
        rows = runner.fewer.known(len(self.logits), runner.batch_size, gradient=False)
        images = self.images if rows is None else self.images[: max(rows, len(self.logits))]
        change = preflight.change_of(runner, images, self.logits)
        if not change <= limit:
            remarks.append(f"the logits of the first images changed by {change:.1e} of their spread during the run")
        if not (change := _change_of_gradient(runner)) <= _OTHER_GRADIENT:
            remarks.append(f"an attack was given gradients that differ by {change:.1e} of their size when asked again")
        if any(module.training for module in runner.model.modules()):
            remarks.append("the model switched to training mode during the run")
        if remarks and "stochastic" not in allow:
            raise EvaluationError(
                f"the model changed while it was evaluated: {remarks[0]}",
                fix="make forward a function of its input alone; or --allow stochastic",
            )
        now = _versions(runner.model)
        written = [name for name, version in self.versions.items() if now.get(name, version) != version]
        if written:
            more = "" if len(written) == 1 else f" and {len(written) - 1} more"
            remarks.append(f"the model wrote into its own weights or buffers during the run: {written[0]}{more}")
        return remarks


def _change_of_gradient(runner: Runner) -> float:
    """Return how far the first gradient of an attack differs from the same one asked for now; 0 without any.

    A few images are asked first, and the whole batch only if their gradients differ, since sums in another order could
    make a difference, too.
    """
    if runner.first_gradient is None:
        return 0.0
    images, loss, presentation, (_, before, logits) = runner.first_gradient

    def change(asked: Runner, rows: int) -> float:
        asked.presentation = presentation
        of_rows = lambda answers: loss(torch.cat([answers, logits[rows:]]))[:rows]  # noqa: E731
        now = asked.gradient(images[:rows], of_rows)[1].nan_to_num()
        then = before[:rows].nan_to_num()
        return float((now - then).abs().amax() / torch.maximum(now.abs().amax(), then.abs().amax()).clamp_min(1e-30))

    with frozen(runner.model):
        few = runner.of_few()
        with suppress(BenchmarkError):  # of a model whose batches have one size
            if (small := change(few, few.batch_size)) <= _OTHER_GRADIENT:
                return small
        return change(copy(runner), len(images))


def require_apart(runner: Runner, images: Images) -> list[str]:
    """Refuse to certify votes of a base model that answers an image by others of its batch, or at random; no remarks.

    Raises:
        BadInputError: it does; that cannot be allowed, because nothing would be proven.
    """
    assert isinstance(runner.model, Certified)
    base = Runner(runner.model.base, runner.batch_size, runner.device)
    FirstBatch.of(base, images, base.logits(images.to(runner.device))).preflight(base, ("probabilities",))
    return []


def _first_rows(logits: Logits) -> Float[Tensor, "first class *place"]:
    """Copy the logits of the first images; those that are NaN or infinite are refused elsewhere."""
    return logits[:FEW].cpu().nan_to_num(0.0, 1.0, -1.0)


def _versions(model: nn.Module) -> dict[str, int]:
    """Return the version of every parameter and buffer: each operation in place increases it."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor._version for name, tensor in tensors if not tensor.is_inference()}  # noqa: SLF001
