"""The model as other libraries want it: a module for batches of any size, which counts, and refuses blind gradients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from robustbench_kpca.errors import EvaluationError
from robustbench_kpca.types import Mask

Counts = Int64[Tensor, " samples"]
Rows = Int64[Tensor, " rows"]
Kind = Literal["forwards", "backwards", "nonfinite", "zero_gradients"]
_NOTHING = 1e-30  # the gradient of a cross-entropy whose other probabilities are below this is zero in single precision


@dataclass(frozen=True)
class Counters:
    """What is counted of each sample; written in place."""

    forwards: Counts
    backwards: Counts
    nonfinite: Counts
    zero_gradients: Counts


class CountedModel(nn.Module):
    """`answer`, counted: a forward pass for every image shown, a backward pass for every image of a gradient.

    Whose images they are, the caller does not say. The total is spread evenly over the samples of the batch (those
    first in it pay what does not divide), so that the sum over samples is exact. So are the images whose logits are
    not finite, or whose gradient is zero everywhere; in a batch of as many images as samples, each is its sample's.

    A caller may ask about some images only, or be content with others (the hinge of C&W): there the slope of its loss
    by the logits is zero, and a zero gradient does not count. That of a cross-entropy is zero, too, once the logits are
    far enough apart: this does count.

    A gradient that is NaN or infinite where the logits are not is an error, as it is for native attacks. It is kept in
    `failure`, since who called may swallow it.

    The network is not a submodule: nothing that is done to this module's mode, parameters or device reaches it.
    """

    def __init__(self, answer: Callable[[Tensor], Tensor], attack: str, counters: Counters, rows: Rows) -> None:
        super().__init__()
        self.answer, self.attack, self.counters, self.rows = answer, attack, counters, rows
        self.spent: dict[Kind, int] = {"forwards": 0, "backwards": 0, "nonfinite": 0, "zero_gradients": 0}
        self.failure: EvaluationError | None = None
        self.place = nn.Parameter(torch.empty(0, device=rows.device), requires_grad=False)  # shows the device
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        count = len(x)
        self._pay("forwards", count)
        x = x.view_as(x)  # so that the hook sees the gradient of this pass alone
        logits = self.answer(x)
        finite = torch.isfinite(logits.detach()).all(1)
        saturated = (logits.detach().softmax(1) > _NOTHING).sum(1) == 1
        self._note("nonfinite", ~finite)
        slopes: list[Tensor] = []  # of the caller's loss by the logits, in the backward pass under way

        def arrive(slope: Tensor) -> None:
            self._pay("backwards", count)
            slopes[:] = [slope.detach()]

        def leave(gradient: Tensor) -> None:
            largest = gradient.detach().flatten(1).abs().amax(1)
            self._refuse(~torch.isfinite(largest) & finite)
            if slopes:
                asked = (slopes.pop() != 0).any(1) | saturated
                self._note("zero_gradients", (largest == 0) & asked)

        if logits.requires_grad:
            logits.register_hook(arrive)
        if x.requires_grad:
            x.register_hook(leave)
        return logits

    def _refuse(self, blind: Mask) -> None:
        if bool(blind.any()):
            self.failure = EvaluationError(
                f"the gradient is NaN or infinite on {int(blind.sum())} of {len(blind)} images under '{self.attack}'",
                fix="a gradient attack cannot judge such a model: make its operations differentiable",
            )
            raise self.failure

    def _note(self, kind: Kind, images: Mask) -> None:
        if len(images) == len(self.rows):
            self._add(kind, images.long())
        else:
            self._pay(kind, int(images.sum()))

    def _pay(self, kind: Kind, passes: int) -> None:
        before, after = self._shares(self.spent[kind]), self._shares(self.spent[kind] + passes)
        self.spent[kind] += passes
        self._add(kind, after - before)

    def _add(self, kind: Kind, counts: Rows) -> None:
        total: Counts = getattr(self.counters, kind)
        with torch.inference_mode(total.is_inference()):  # the caller's mode, which may not be that here
            total[self.rows] += counts

    def _shares(self, total: int) -> Rows:
        each, more = divmod(total, len(self.rows))
        return each + (torch.arange(len(self.rows), device=self.rows.device) < more).long()
