"""One attention layer on a few images, as every claim sees it: q, k, v, what came out, and the spectrum of its keys."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustbench_kpca.diagnostics.kernel import Spectrum, spectrum, standardised
from robustbench_kpca.randomness import generator, sample_key

Heads = Float[Tensor, "images heads tokens width"]


@dataclass(frozen=True)
class Layer:
    """Double precision throughout, for the exponents need it; padding is gone, so all images have the same tokens.

    Attributes:
        index: among the attention layers of the model, from 0.
        name: of the module in the model.
        module: the attention itself, for claims about its parameters.
        x: the tokens it was given, (images, tokens, C), in its own precision.
        q: queries; the keys in symmetric attention.
        k: keys.
        v: the values that the softmax mixes; None for attention without values (Primal, KEP-SVGP).
        h: what each head made of them, before the output projection; None where that cannot be seen.
        heads: the numbers of the heads that are here, rising.
        ids: of the images.
        seed: of all randomness.

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

    @property
    def width(self) -> int:
        """D, of one head."""
        return int(self.k.shape[-1])

    @property
    def values(self) -> Heads:
        """The values, of a layer that has them."""
        assert self.v is not None
        return self.v

    @property
    def outputs(self) -> Heads:
        """What the heads made, of a layer where it is seen."""
        assert self.h is not None
        return self.h

    @cached_property
    def spectrum(self) -> Spectrum:
        """Kernel PCA of the keys as they are; shared by the claims, for nothing here costs more."""
        return spectrum(self.k)

    @cached_property
    def standardised_spectrum(self) -> Spectrum:
        """Eigenvalues (no axes) of the keys standardised token by token."""
        return spectrum(standardised(self.k), axes=False)

    def gaussian(self, scope: str) -> Heads:
        """Draw standard normal numbers of the values' shape, from a stream of each image's own."""
        shape = self.k.shape[1:]
        drawn = [
            generator(sample_key(self.seed, f"{scope}/{self.index}", image)).standard_normal(shape)
            for image in self.ids
        ]
        return torch.from_numpy(np.stack(drawn)).to(self.k)
