"""`masked:NAME`: the answer of NAME that stands when squares of the image are masked; patches are certified.

`--set model.patch=5`: the side of the patch; `model.masks`: how many masks there are along an axis.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustbench_kpca.models.certified import Viewed, base_of, one_hot
from robustbench_kpca.records.proof import Masks
from robustbench_kpca.types import Logits


class Masked(Viewed):
    """Double masking: see `records.proof.Masks`.

    The majority of the predictions under one mask is the answer, unless one of the others stands under every second
    mask: then the first such one.
    """

    def views(self, height: int, width: int) -> Iterator[Tensor]:
        """Yield what masks i <= j leave visible, pair by pair; i = j is one mask."""
        assert isinstance(self.proof, Masks)
        axes = []
        for length in (height, width):
            side, starts = self.proof.places(length)
            places = torch.arange(length)
            axes.append([(places >= start) & (places < start + side) for start in starts])
        visible = [~(row[:, None] & column) for row, column in product(*axes)]
        for at, first in enumerate(visible):
            for second in visible[at:]:
                yield first & second

    def tally(self, logits: Float[Tensor, "batch pair class"]) -> Logits:
        """Count the predictions under all pairs; the answer has more than all of them beside its own."""
        votes = one_hot(logits)
        pairs, classes = votes.shape[1:]
        count = int((2 * pairs) ** 0.5)  # pairs = count (count + 1) / 2
        upper = torch.triu_indices(count, count, device=votes.device)
        table = votes.new_zeros(len(votes), count, count, classes)
        table[:, upper[0], upper[1]] = table[:, upper[1], upper[0]] = votes
        single = table.diagonal(dim1=1, dim2=2).transpose(1, 2)
        majority = single.sum(1).argmax(1)
        stands = (table * single[:, :, None]).sum((2, 3)) == count
        stands &= single.argmax(2) != majority[:, None]
        chosen = single.argmax(2).gather(1, stands.byte().argmax(1, keepdim=True))[:, 0]
        answers = torch.where(stands.any(1), chosen, majority)
        silent = pairs - votes.sum((1, 2))[:, None]  # not finite: counted as a vote for some other class
        counted = votes.sum(1).scatter_add(1, (answers[:, None] + 1) % classes, silent)
        return counted.scatter_add(1, answers[:, None], torch.full_like(silent, pairs + 1))

    def evidence(self, counted: Logits) -> tuple[Tensor, Tensor, Tensor]:
        """Return the answers, how many pairs agree, and how many do not."""
        most, answers = counted.max(1)
        pairs = (counted.sum(1) - 1) / 2
        return answers, most - pairs - 1, counted.sum(1) - most


def build(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """Return a model as `sources` says."""
    return Masked(*base_of(name, pretrained, options, Masks))
