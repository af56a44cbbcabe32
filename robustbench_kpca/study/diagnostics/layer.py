"""One attention layer on a few images, as passed to every claim: q, k, v, outputs, and the kernel PCA of its keys."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.attention.shared.heads import standardised
from robustbench_kpca.study.diagnostics.kernel import Spectrum, spectrum

Heads = Float[Tensor, "images heads tokens width"]


@dataclass(frozen=True)
class Layer:
    """Tensors of one layer, in double precision, for the exponentials.

    Attributes:
        index: number of the layer among the model's attention layers, from 0.
        name: name of the module in the model.
        module: the attention module, for claims about its parameters.
        x: its input tokens, (images, tokens, C), in the model's precision.
        q: queries; the keys in symmetric attention.
        k: keys.
        v: the values that the softmax averages; None for attention without values (Primal, KEP-SVGP).
        h: the output of each head before the output projection; None if it cannot be read.
        heads: numbers of the selected heads, ascending.
        ids: ids of the images.
        seed: seed of all random numbers.
    """

    index: int
    name: str
    module: nn.Module
    x: Tensor
    q: Heads
    k: Heads
    v: Heads | None
    h: Heads | None
    heads: tuple[int, ...]
    ids: tuple[str, ...]
    seed: int

    def has_values(self) -> bool:
        """Return whether there are values that the softmax averages."""
        return self.v is not None

    def has_outputs(self) -> bool:
        """Return whether the softmax averages values, and its outputs can be read."""
        return self.v is not None and self.h is not None

    @property
    def width(self) -> int:
        """Width D of one head."""
        return int(self.k.shape[-1])

    @property
    def values(self) -> Heads:
        """Return v of a layer that has values."""
        assert self.v is not None
        return self.v

    @property
    def outputs(self) -> Heads:
        """Return h of a layer whose outputs can be read."""
        assert self.h is not None
        return self.h

    @cached_property
    def spectrum(self) -> Spectrum:
        """Kernel PCA of the keys, computed once for all claims because it is the most expensive step."""
        return spectrum(self.k)

    @cached_property
    def standardised_spectrum(self) -> Spectrum:
        """Kernel PCA (eigenvalues only) of the keys, standardised token by token."""
        return spectrum(standardised(self.k), axes=False)

    def gaussian(self, scope: str) -> Heads:
        """Draw standard normal numbers of the keys' shape, from a separate random stream for each image."""
        shape = self.k.shape[1:]
        drawn = [
            generator(sample_key(self.seed, f"{scope}/{self.index}", image)).standard_normal(shape)
            for image in self.ids
        ]
        return torch.from_numpy(np.stack(drawn)).to(self.k)
