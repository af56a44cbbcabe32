"""`smoothed:NAME`: the class that NAME gives most often to randomly changed images; L2 balls or pixels are certified.

`model.sigma=0.25`: Gaussian noise on pixels in [0, 1], not clipped. `model.keep=45` and `model.pixels=1024`: all but 45
of the 1024 pixels of an image are hidden. Under attack, set `draws`, for example to 100.
"""

from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.models.certified import Drawn, base_of
from robustbench_kpca.records.proof import Noise, Pixels
from robustbench_kpca.types import Images


class Noisy(Drawn):
    """See `records.proof.Noise`."""

    def changed(self, x: Images, draws: Tensor) -> Images:
        """Add the numbers, times sigma."""
        return x + float(self.config["sigma"]) * draws


class Sparse(Drawn):
    """See `records.proof.Pixels`."""

    def changed(self, x: Images, draws: Tensor) -> Images:
        """Show the pixels whose numbers of the first channel are largest.

        Raises:
            BadInputError: the images have another number of pixels than the model states.
        """
        proof, count = self.proof, x.shape[2] * x.shape[3]
        assert isinstance(proof, Pixels)
        if count != proof.pixels or proof.keep > count:
            raise BadInputError(f"images of {count} pixels for {proof}", fix=f"set model.pixels={count}")
        order = draws[:, 0].flatten(1)
        visible = torch.zeros_like(order, dtype=torch.bool).scatter(1, order.topk(proof.keep).indices, value=True)
        return torch.where(visible.view(len(x), 1, *x.shape[2:]), x, proof.fill)


def build(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """Return a model as `sources` says."""
    base, proof = base_of(name, pretrained, options, Noise, Pixels)
    return Noisy(base, proof) if isinstance(proof, Noise) else Sparse(base, proof)
