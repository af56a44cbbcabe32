"""Power of the verdict on value vectors: V = alpha V_theory + (1 - alpha) noise, judged like a model's values.

Keys and noise are Gaussian; V_theory and noise have norm 1. A figure and the tests of the thresholds use this curve.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.study.diagnostics import CLAIMS, thresholds
from robustbench_kpca.study.diagnostics.diagnosis import Outcome
from robustbench_kpca.study.diagnostics.kernel import spectrum
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.totals import Totals, block_orders, draws_for


@dataclass(frozen=True)
class Point:
    """The result at one alpha: mean linear CKA, chance level, fraction of heads above chance, and the verdict."""

    alpha: float
    linear_cka: float
    chance: float
    above_chance: float
    outcome: Outcome


def power_curve(
    alphas: Sequence[float],
    *,
    tokens: int = 197,
    width: int = 64,
    heads: int = 6,
    images: int = 10,
    block: int = 5,
    key_std: float = 1.0,
    seed: int = 0,
) -> list[Point]:
    """Judge the values for each alpha; keys and noise are the same for all."""
    shape = (images, heads, tokens, width)
    keys = key_std * _gaussian(shape, seed, "keys")
    theory, _ = spectrum(keys).theoretical_values(width)
    noise = _gaussian(shape, seed, "noise")
    unit_theory, unit_noise = (x / x.norm(dim=(-2, -1), keepdim=True) for x in (theory, noise))
    return [_point(alpha, keys, alpha * unit_theory + (1 - alpha) * unit_noise, block, seed) for alpha in alphas]


def _point(alpha: float, keys: Tensor, values: Tensor, block: int, seed: int) -> Point:
    claim = CLAIMS.get("value_vectors")
    images, heads = keys.shape[:2]
    numbers = tuple(range(heads))
    totals = Totals(claim, [(0, head) for head in numbers], draws_for(heads))
    for first in range(0, images, block):
        k, v = keys[first : first + block], values[first : first + block]
        ids = tuple(str(image) for image in range(first, first + len(k)))
        layer = Layer(0, "planted", nn.Identity(), k, q=k, k=k, v=v, h=None, heads=numbers, ids=ids, seed=seed)
        totals.add([claim.observe(layer)], block_orders(seed, str(first), draws_for(heads), len(k)))
    results = totals.results()
    measured = results.statistics["linear_cka"]
    above = sum(unit.p_holm is not None and unit.p_holm <= thresholds.SIGNIFICANCE for unit in measured.units)
    assert measured.null is not None
    return Point(alpha, measured.estimate.value, measured.null.chance, above / heads, claim.verdict(results).outcome)


def _gaussian(shape: tuple[int, ...], seed: int, scope: str) -> Tensor:
    rng = generator(sample_key(seed, "power", scope))
    return torch.from_numpy(np.asarray(rng.standard_normal(shape)))
