"""The model as other libraries want it: a module for batches of any size, which counts passes and judges nothing."""

from collections.abc import Callable

import torch
from jaxtyping import Int64
from torch import Tensor, nn

Counts = Int64[Tensor, " samples"]
Rows = Int64[Tensor, " rows"]


class BareModel(nn.Module):
    """`answer`, counted: a forward pass for every image shown, a backward pass for every image of a gradient.

    Whose images they are, the caller does not say. The total is spread evenly over the samples of the batch (those
    first in it pay what does not divide), so that the sum over samples is exact.

    The network is not a submodule: nothing that is done to this module's mode, parameters or device reaches it.
    """

    def __init__(self, answer: Callable[[Tensor], Tensor], forwards: Counts, backwards: Counts, rows: Rows) -> None:
        super().__init__()
        self.answer, self.rows = answer, rows
        self.counts, self.spent = (forwards, backwards), [0, 0]
        self.place = nn.Parameter(torch.empty(0, device=rows.device), requires_grad=False)  # shows the device
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        count = len(x)
        self._pay(0, count)
        logits = self.answer(x)
        if logits.requires_grad:
            logits.register_hook(lambda _: self._pay(1, count))
        return logits

    def _pay(self, kind: int, passes: int) -> None:
        before, after = self._shares(self.spent[kind]), self._shares(self.spent[kind] + passes)
        self.spent[kind] += passes
        with torch.inference_mode(self.counts[kind].is_inference()):  # the caller's mode, which may not be that here
            self.counts[kind][self.rows] += after - before

    def _shares(self, total: int) -> Rows:
        each, more = divmod(total, len(self.rows))
        return each + (torch.arange(len(self.rows), device=self.rows.device) < more).long()
