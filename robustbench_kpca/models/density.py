"""How sparse the sparse part of RPC attention is, and how much its softmax still mixes tokens.

Teo & Nguyen (2024, arXiv:2406.13762) motivate Principal Attention Pursuit by a sparse S that takes up corruption; here
the share of non-zero entries of S is read off a model at work, iteration by iteration.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robustbench_kpca.attention.rpc import RPCAttention
from robustbench_kpca.types import Images


@dataclass(frozen=True)
class Density:
    """One iteration of one RPC block (numbered among those), averaged over images, heads, tokens and dimensions."""

    block: int
    iteration: int
    density: float
    """Share of entries of S that are not zero."""
    residual: float
    """||K - L - S||_F / ||K||_F: 0 where the split L + S = K holds."""


@torch.no_grad()
def rpc_density(model: nn.Module, images: Images) -> list[Density]:
    """Run `images` through `model` and report every RPC attention in it, in order; empty if there is none."""
    found: list[Density] = []
    attentions = [module for module in model.modules() if isinstance(module, RPCAttention)]
    for block, attention in enumerate(attentions):

        def observe(iteration: int, k: Tensor, low_rank: Tensor, sparse: Tensor, block: int = block) -> None:
            residual = (k - low_rank - sparse).norm() / k.norm()
            found.append(Density(block, iteration + 1, float((sparse != 0).float().mean()), float(residual)))

        attention.observer = observe
    try:
        model(images)
    finally:
        for attention in attentions:
            attention.observer = None
    return found


def last_densities(model: nn.Module, images: Images) -> list[Density]:
    """Keep the last iteration of every RPC block: the S that the block's output was computed with."""
    last = {density.block: density for density in rpc_density(model, images)}
    return list(last.values())
