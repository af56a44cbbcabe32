"""A model for attacks of other libraries: it counts forward and backward passes and refuses NaN gradients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from robustbench_kpca._core.errors import EvaluationError
from robustbench_kpca.types import Mask

Counts = Int64[Tensor, " samples"]
Rows = Int64[Tensor, " rows"]
Kind = Literal["forwards", "backwards", "nonfinite", "zero_gradients"]
_NOTHING = 1e-30  # if all other probabilities are below this, the cross-entropy gradient is zero in single precision


@dataclass(frozen=True)
class Counters:
    """Counts per sample; written in place."""

    forwards: Counts
    backwards: Counts
    nonfinite: Counts
    zero_gradients: Counts


class CountedModel(nn.Module):
    """Calls `answer` and counts: one forward pass per image, one backward pass per image of a gradient.

    A foreign attack does not say which sample an image belongs to. The total is therefore divided evenly over the
    samples of the batch; the remainder goes to the first samples, so that the sum over samples is exact. Images with
    non-finite logits or an all-zero gradient are divided in the same way, unless the batch has exactly one image per
    sample: then each is counted for its own sample.

    A zero input gradient is counted only if the loss depends on the logits of that image. An attack may take the loss
    of some images only, or its loss may be flat by design (the hinge of C&W): those images are not counted. The
    cross-entropy also becomes flat, by rounding, when the logits are far apart: these images are counted.

    A gradient that is NaN or infinite where the logits are finite is an error, as for native attacks. It is also stored
    in `failure`, because the foreign attack may catch the exception.

    The network is not registered as a submodule, so the mode, parameters and device of this module do not affect it.
    """

    def __init__(self, answer: Callable[[Tensor], Tensor], attack: str, counters: Counters, rows: Rows) -> None:
        super().__init__()
        self.answer, self.attack, self.counters, self.rows = answer, attack, counters, rows
        self.totals: dict[Kind, int] = {"forwards": 0, "backwards": 0, "nonfinite": 0, "zero_gradients": 0}
        self.failure: EvaluationError | None = None
        self.place = nn.Parameter(torch.empty(0, device=rows.device), requires_grad=False)  # tells the device
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits; count the forward pass and, by hooks, the backward pass."""
        count = len(x)
        self._distribute("forwards", count)
        x = x.view_as(x)  # so that the hook receives the gradient of this pass only
        logits = self.answer(x)
        finite = torch.isfinite(logits.detach()).all(1)
        saturated = (logits.detach().softmax(1) > _NOTHING).sum(1) == 1
        self._note("nonfinite", ~finite)
        logit_gradients: list[Tensor] = []  # gradient of the attack's loss by the logits, in the current backward pass

        def at_logits(gradient: Tensor) -> None:
            self._distribute("backwards", count)
            logit_gradients[:] = [gradient.detach()]

        def at_input(gradient: Tensor) -> None:
            largest = gradient.detach().flatten(1).abs().amax(1)
            self._refuse(~torch.isfinite(largest) & finite)
            if logit_gradients:
                relevant = (logit_gradients.pop() != 0).any(1) | saturated
                self._note("zero_gradients", (largest == 0) & relevant)

        if logits.requires_grad:
            logits.register_hook(at_logits)
        if x.requires_grad:
            x.register_hook(at_input)
        return logits

    def _refuse(self, nonfinite: Mask) -> None:
        if bool(nonfinite.any()):
            self.failure = nonfinite_gradient(nonfinite, self.attack)
            raise self.failure

    def _note(self, kind: Kind, images: Mask) -> None:
        if len(images) == len(self.rows):
            self._add(kind, images.long())
        else:
            self._distribute(kind, int(images.sum()))

    def _distribute(self, kind: Kind, number: int) -> None:
        """Divide a number evenly over the samples; the first samples get the remainder."""
        before, after = self._shares(self.totals[kind]), self._shares(self.totals[kind] + number)
        self.totals[kind] += number
        self._add(kind, after - before)

    def _add(self, kind: Kind, counts: Rows) -> None:
        total: Counts = getattr(self.counters, kind)
        with torch.inference_mode(total.is_inference()):  # the mode in which the counters were created
            total[self.rows] += counts

    def _shares(self, total: int) -> Rows:
        each, remainder = divmod(total, len(self.rows))
        return each + (torch.arange(len(self.rows), device=self.rows.device) < remainder).long()


def nonfinite_gradient(rows: Mask, attack: str) -> EvaluationError:
    """Return the error for a NaN or infinite gradient at finite logits, on the images where `rows` is true."""
    return EvaluationError(
        f"the gradient is NaN or infinite on {int(rows.sum())} of {len(rows)} images under '{attack}'",
        fix="gradient attacks cannot evaluate such a model: make its operations differentiable",
    )
