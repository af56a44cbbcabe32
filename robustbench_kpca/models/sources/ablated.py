"""`ablated:NAME`: votes of NAME on bands of columns of the image, all else hidden; patches are certified.

`--set model.band=4`; `model.stride`: the distance between views; `model.fill`: the hidden shade.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.models.certified import Viewed, base_of
from robustbench_kpca.records.proof import Bands


class Ablated(Viewed):
    """See `records.proof.Bands`."""

    def views(self, height: int, width: int) -> Iterator[Tensor]:  # noqa: ARG002
        """Yield the bands; the last ones wrap round.

        Raises:
            BadInputError: a band is longer than the image, or the stride does not divide its width.
        """
        assert isinstance(self.proof, Bands)
        band, stride = self.proof.band, self.proof.stride
        if band > width or width % stride:
            raise BadInputError(
                f"bands of {band} pixels at stride {stride} on {width}",
                expected="bands no longer than the image, whose width is a multiple of the stride",
            )
        places = torch.arange(width)
        yield from ((places - start) % width < band for start in range(0, width, stride))


def build(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """Return a model as `sources` says."""
    return Ablated(*base_of(name, pretrained, options, Bands))
