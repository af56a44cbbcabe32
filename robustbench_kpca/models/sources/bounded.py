"""`bounded:NAME`: NAME itself, with bounds on its logits; L-infinity balls are certified, for small networks.

`--set model.eps=1/255`: the radius. Every pixel of an image is carried through the network, with much memory.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca.models.bounds import lower_everywhere
from robustbench_kpca.models.certified import Certified, base_of
from robustbench_kpca.records.proof import Bounds
from robustbench_kpca.types import Images, Logits


class Bounded(Certified):
    """See `records.proof.Bounds`."""

    def forward(self, x: Images) -> Logits:
        """Return the logits of the base model."""
        logits: Logits = self.base(x)
        return logits

    def counted(self, x: Images) -> Logits:
        """Return 0 for classes below the answer everywhere, 1 for others, and for the answer the number of classes.

        An answer that is not finite has no row but zeros.
        """
        assert isinstance(self.proof, Bounds)
        exact, logits = deepcopy(self.base).double(), self.base(x)
        counted = torch.zeros_like(logits, dtype=torch.float32)
        for row, (image, answer) in enumerate(zip(x.double(), logits.argmax(1).tolist(), strict=True)):
            if torch.isfinite(logits[row]).all():
                counted[row] = ~lower_everywhere(exact, image[None], self.proof.eps, answer)
                counted[row, answer] = logits.shape[1]
        return counted

    def evidence(self, counted: Logits) -> tuple[Tensor, Tensor, Tensor]:
        """Return the answers, how many classes they leave, and how many they do not."""
        answered, rivals = counted.amax(1) > 0, (counted == 1).sum(1)
        return counted.argmax(1), answered * (counted.shape[1] - rivals), rivals


def build(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """Return a model as `sources` says."""
    return Bounded(*base_of(name, pretrained, options, {"eps": Bounds}))
