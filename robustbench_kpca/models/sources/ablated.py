"""`ablated:NAME`: votes of NAME on bands or blocks of the image, all else hidden; patches are certified.

`--set model.band=4` or `model.block=12`; `model.stride`: the distance between views; `model.fill`: the hidden shade.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.models.certified import Viewed, base_of
from robustbench_kpca.records.proof import Bands, Blocks
from robustbench_kpca.types import Images


class Ablated(Viewed):
    """See `records.proof.Bands` and `Blocks`."""

    def views(self, x: Images) -> Iterator[Images]:
        """Yield the bands, or the blocks row by row."""
        height, width = x.shape[2:]
        rows = [torch.ones(height, dtype=torch.bool)] if isinstance(self.proof, Bands) else self._windows(height)
        for row in rows:
            for column in self._windows(width):
                yield self.hidden(x, row[:, None] & column)

    def _windows(self, length: int) -> list[Tensor]:
        """Return which pixels of an axis each view shows; the last views wrap round."""
        assert isinstance(self.proof, Bands | Blocks)
        side, stride = self.proof.band if isinstance(self.proof, Bands) else self.proof.block, self.proof.stride
        if side > length or length % stride:
            raise BadInputError(
                f"windows of {side} pixels at stride {stride} on {length}",
                expected="windows no longer than the image, whose side is a multiple of the stride",
            )
        places = torch.arange(length)
        return [(places - start) % length < side for start in range(0, length, stride)]


def build(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """Return a model as `sources` says."""
    return Ablated(*base_of(name, pretrained, options, {"band": Bands, "block": Blocks}))
