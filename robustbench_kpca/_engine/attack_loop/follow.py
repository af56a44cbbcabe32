"""Run one attack on one batch to the end of its budget, without the engine: no counting, no early stopping."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from robustbench_kpca._engine.inference.edge import gradients_inside, is_blind
from robustbench_kpca._engine.inference.runner import ANY_LOGITS, gradients_on
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Attack, Images, Keys, Labels, Logits, Loss, Mask, PerSample, Query, State

Rows = Labels | slice
"""Which samples of a batch: their numbers, or all of them."""


@runtime_checkable
class Runs(Protocol):
    """Anything that runs a model: an `inference.runner.Runner`, or `WholeBatches`."""

    model: nn.Module
    classes: int | None
    """Number of classes of its logits; None until it has answered."""

    def logits(self, x: Images) -> Logits:
        """One forward pass."""
        ...

    def gradient(self, x: Images, loss: Loss) -> tuple[PerSample, Images, Logits]:
        """One forward and one backward pass: losses, their gradients with respect to `x`, and the logits."""
        ...


class WholeBatches:
    """Runs a model on batches of any size; the model's mode (training or evaluation) is not changed.

    The first gradient at images with values at the edge of the box tells whether the model is blind there (`edge`).
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.classes: int | None = None
        self.presentation, self.tried = ANY_LOGITS, False

    def logits(self, x: Images) -> Logits:
        """One forward pass; logits in single precision."""
        with torch.no_grad():
            logits: Logits = self.model(x).float()
        self.classes = logits.shape[1]
        return logits

    def gradient(self, x: Images, loss: Loss) -> tuple[PerSample, Images, Logits]:
        """One forward and one backward pass; of a model that is blind at the edge, one more to the inside."""
        losses, gradient, logits = self._gradient(x, loss)
        if self.tried or (x.amin() > 0 and x.amax() < 1):
            return losses, gradient, logits
        self.tried = True
        flat = gradient.abs().amin() == 0 and bool(((gradient == 0) & ((x == 0) | (x == 1))).any())
        if not flat or not is_blind(self._gradient, x):
            return losses, gradient, logits
        self.presentation = gradients_inside(self.presentation)
        return self._gradient(x, loss)

    def _gradient(self, x: Images, loss: Loss) -> tuple[PerSample, Images, Logits]:
        x = x.detach().requires_grad_()
        with gradients_on(x.device):
            logits: Tensor = self.presentation.show(self.model, x).float()
            losses = loss(logits)
            (gradient,) = torch.autograd.grad(losses.sum(), x)
        self.classes = logits.shape[1]
        return losses.detach(), gradient, logits.detach()


@dataclass(frozen=True)
class PlainQuery:
    """A `Query` that only runs the model: it counts no passes, checks no images and stops no sample.

    Attributes:
        runs: runs the model.
        loss: maps rows of the batch to the loss whose gradient is returned; None: the loss of the attack.
        losses: the losses of every gradient that was computed, in order.
        index: the rows of the batch that this query covers.
    """

    runs: Runs
    loss: Callable[[Rows], Loss] | None = None
    losses: list[PerSample] = field(default_factory=list)
    index: Rows = field(default_factory=lambda: slice(None))

    @property
    def classes(self) -> int:
        """Number of classes of the logits; 0 until the model has answered."""
        return self.runs.classes or 0

    def logits(self, x: Images, *, outside: bool = False) -> Logits:  # noqa: ARG002 (nothing is checked)
        """One forward pass."""
        return self.runs.logits(x)

    def logits_of_each(self, proposals: Iterable[Images], *, outside: bool = False) -> Iterator[Logits]:  # noqa: ARG002
        """One forward pass of each."""
        return (self.logits(x) for x in proposals)

    def gradient(self, x: Images, loss: Loss, *, outside: bool = False) -> tuple[PerSample, Images]:  # noqa: ARG002
        """One forward and one backward pass: losses and their gradients with respect to `x`."""
        losses, gradient, _ = self.runs.gradient(x, loss if self.loss is None else self.loss(self.index))
        self.losses.append(losses)
        return losses, gradient

    def gradient_of_each(
        self, x: Images, losses: Sequence[Loss], *, outside: bool = False
    ) -> Iterator[tuple[PerSample, Images]]:
        """`gradient` of each loss."""
        return (self.gradient(x, loss, outside=outside) for loss in losses)

    def rows(self, mask: Mask) -> "PlainQuery":
        """Restrict to the samples where `mask` is true; the list of losses is shared."""
        chosen = mask.nonzero()[:, 0]
        return replace(self, index=chosen if isinstance(self.index, slice) else self.index[chosen])

    def module(self) -> nn.Module:
        """Return the model."""
        return self.runs.model


def run_to_end(attack: Attack, query: Query, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
    """Run an attack on one batch until the budget of every sample is spent; return its last state.

    Args:
        attack: such as `engine.build_attack` returns.
        query: gives the attack access to the model, such as `PlainQuery`.
        x: clean images in [0, 1].
        y: their labels or, if the threat is targeted, the classes to reach.
        threat: the ball around each clean image, and whether the attack is targeted.
        keys: the random stream of each sample: one number per sample.
    """
    state = attack.start(x, y, threat, keys)
    while not bool(state["finished"].all()):
        state = attack.step(state, threat, query)
    return state
