"""Chance levels: similarities of unrelated random matrices. A similarity at this level is no evidence.

The study (arXiv:2505.07908) calls optimal cosines up to 0.32 low; two independent Gaussian matrices of 197 tokens and
width 64 reach 0.32 by chance.
"""

import numpy as np
import torch
from torch import Tensor

from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.study.diagnostics import similarity as s
from robustbench_kpca.study.diagnostics.diagnosis import Chance
from robustbench_kpca.study.diagnostics.kernel import spectrum

DRAWS = 20


def chance_levels(tokens: int, width: int, *, seed: int = 0, draws: int = DRAWS) -> tuple[Chance, ...]:
    """Return mean and deviation of each similarity for three pairs of unrelated matrices, (tokens, width)."""
    x, y, keys = (_gaussian(tokens, width, draws, f"{seed}/{part}") for part in ("x", "y", "keys"))
    orthonormal = torch.linalg.qr(y).Q if tokens >= width else y
    theory, _ = spectrum(keys).theoretical_values(width)
    pairs = {
        "Gaussian and Gaussian": y,
        "Gaussian and random orthonormal columns": orthonormal,
        "Gaussian and V_theory of Gaussian keys": theory,
    }
    return tuple(
        Chance(
            pair=pair,
            statistic=name,
            tokens=tokens,
            width=width,
            mean=float(values.mean()),
            deviation=float(values.std()) if draws > 1 else 0.0,
            draws=draws,
        )
        for pair, other in pairs.items()
        for name, values in _similarities(x, other).items()
    )


def _similarities(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Compare draw by draw: draws take the place of heads, so no draw is compared with another."""
    bases = s.basis(x), s.basis(y)
    projectors = [basis @ basis.transpose(-2, -1) for basis in bases]
    by_name = {
        "linear_cka": s.cosines(s.linear_gram(x), s.linear_gram(y)),
        "kernel_cka": s.cosines(s.kernel_gram(x), s.kernel_gram(y)),
        "debiased_cka": s.cosines(s.debiased_gram(x), s.debiased_gram(y)),
        "subspace_overlap": s.cosines(*projectors),
        "matching_cosine": s.matching_cosine(x, y),
        "direct_cosine": s.direct_cosine(x, y),
    }
    return {name: values[0, 0] for name, values in by_name.items()}


def _gaussian(tokens: int, width: int, draws: int, scope: str) -> Tensor:
    rng = generator(sample_key(0, "chance", scope))
    return torch.from_numpy(np.asarray(rng.standard_normal((1, draws, tokens, width))))
