"""Iterates of a layer's pursuit, head by head, on its own keys and on random keys of the same scale.

Pursuit: Teo & Nguyen (2024), arXiv:2406.13762, Definition 1, as in `attention.rpc`, here in double precision.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca.attention.rpc import Iterate, Pursuit
from robustbench_kpca.attention.rpc_asymmetric import AsymmetricRPCAttention
from robustbench_kpca.study.diagnostics.layer import Heads, Layer

PerHead = Float[Tensor, "images heads"]
ByIteration = Float[Tensor, "images heads iterations"]
Measure = Callable[[Iterate], Tensor]


@dataclass(frozen=True)
class Traces:
    """Iterates 1 to n on a layer's own keys and on random keys, and plain attention on its own keys."""

    own: list[Iterate]
    random: list[Iterate]
    unpursued: Iterate

    def last(self, measure: Measure, name: str) -> dict[str, PerHead]:
        """Measure the last iterates and plain attention, as `name`, `name_random` and `name_unpursued`."""
        return {
            name: measure(self.own[-1]),
            f"{name}_random": measure(self.random[-1]),
            f"{name}_unpursued": measure(self.unpursued),
        }

    def by_iteration(self, measure: Measure, name: str) -> dict[str, ByIteration]:
        """Measure every iterate, as `name_by_iteration` and `name_by_iteration_random`."""
        runs = {f"{name}_by_iteration": self.own, f"{name}_by_iteration_random": self.random}
        return {key: torch.stack([measure(step) for step in steps], -1) for key, steps in runs.items()}


def pursues(layer: Layer) -> bool:
    """Tell whether a layer runs at least one iteration of a pursuit."""
    pursuit = getattr(layer.module, "pursuit", None)
    return isinstance(pursuit, Pursuit) and pursuit.iterations > 0


def pursuit_of(layer: Layer) -> Pursuit:
    """Return the pursuit of a layer that has one."""
    pursuit = layer.module.pursuit
    assert isinstance(pursuit, Pursuit)
    return pursuit


@lru_cache(maxsize=1)  # several claims use the same layer, one after another
def traces(layer: Layer) -> Traces:
    """Run a layer's pursuit on its own keys and values, and on Gaussian ones with each head's standard deviation."""
    pursuit = pursuit_of(layer)
    query = layer.q if isinstance(layer.module, AsymmetricRPCAttention) else None
    k, v = (layer.gaussian(f"random {name}") * _deviation(x) for name, x in (("k", layer.k), ("v", layer.values)))
    q = None if query is None else layer.gaussian("random q") * _deviation(query)
    plain = replace(pursuit, iterations=0)
    return Traces(
        iterates(pursuit, layer.k, layer.values, query),
        iterates(pursuit, k, v, q),
        iterates(plain, layer.k, layer.values, query)[0],
    )


def iterates(pursuit: Pursuit, k: Heads, v: Heads, query: Heads | None = None) -> list[Iterate]:
    """Run a pursuit on all heads of a layer, since mu depends on their number, and return all iterates."""
    steps: list[Iterate] = []
    pursuit(k, v, query, observer=steps.append)
    return steps


def residual(step: Iterate) -> PerHead:
    """Return ||K - L - S||_F / ||K||_F: 0 where K = L + S."""
    return size(step.k - step.low_rank - step.sparse) / size(step.k).clamp_min(1e-300)


def density(step: Iterate) -> PerHead:
    """Return the share of entries of S that are not 0."""
    share: Tensor = (step.sparse != 0).double().mean((-2, -1))
    return share


def size(x: Heads) -> PerHead:
    """Return the Frobenius norm of every head's matrix."""
    norm: Tensor = torch.linalg.matrix_norm(x)
    return norm


def effective_rank(sizes: Float[Tensor, "*batch count"]) -> Float[Tensor, " *batch"]:
    """Return exp(entropy) of singular values scaled to sum 1 (Roy & Vetterli 2007); m for m equal values."""
    shares = sizes / sizes.sum(-1, keepdim=True).clamp_min(1e-300)
    rank: Tensor = torch.special.entr(shares).sum(-1).exp()
    return rank


def _deviation(x: Heads) -> Tensor:
    return x.std((-2, -1), keepdim=True)
