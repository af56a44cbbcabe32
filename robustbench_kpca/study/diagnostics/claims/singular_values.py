"""Claim: attention matrices have low rank, beyond that of unstructured rows with the same entropy.

Source: Chen et al. (2023), arXiv:2305.19798, who use only the leading singular functions of the attention kernel.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.attention.identity import IdentityAttention
from robustbench_kpca.models.mixing import attention_weights
from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict, by_heads
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.pursuits import effective_rank, pursues, traces

Matrices = Float[Tensor, "images heads tokens tokens"]
Sizes = Float[Tensor, "images heads tokens"]
POINTS = 20
"""Number of points of the profile, at the fractions 1/20, 2/20, ..., 1 of the singular values."""


class SingularValues:
    """Measures how fast the singular values of A = softmax(Q K^T / sqrt(D)) decay, and the same with shuffled rows."""

    title = "Attention matrices have low rank"
    source = "Chen et al. (2023), arXiv:2305.19798, section 1"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "energy": Statistic("share of the squared singular values in the largest tenth of them", "more"),
        "energy_shuffled": Statistic("the same with the entries of every row shuffled: same entropy, no structure"),
        "energy_random": Statistic("the same for Gaussian queries and keys with the head's scale"),
        "rank": Statistic("effective rank (exp of the entropy of the singular values) over tokens", "less"),
        "rank_shuffled": Statistic("the same with shuffled rows"),
        "rank_random": Statistic("the same for Gaussian queries and keys"),
        "rank_saved": Statistic("effective rank with shuffled rows minus that of the matrix, over tokens", "more"),
    }
    profiles: ClassVar[Mapping[str, str]] = {
        "energy_by_share": "cumulative share of the squared singular values, by share of the singular values",
        "energy_by_share_shuffled": "the same with shuffled rows",
    }

    def applies(self, layer: Layer) -> bool:
        """Return whether a softmax averages values; the matrix is the softmax, without the scaling of the values."""
        return layer.v is not None and not isinstance(layer.module, IdentityAttention)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Compute the singular values of the attention matrices, for a pursuit those of its last iteration."""
        learned, random = attention_matrices(layer)
        kinds = {"": learned, "_shuffled": shuffled_rows(learned, layer), "_random": random}
        sizes = {kind: singular_values(matrices) for kind, matrices in kinds.items()}
        measured: dict[str, Tensor] = {}
        for kind, values in sizes.items():
            tokens = values.shape[-1]
            measured[f"energy{kind}"] = energy(values, thresholds.LOW_RANK_SHARE)
            measured[f"rank{kind}"] = effective_rank(values) / tokens
        for kind in ("", "_shuffled"):
            measured[f"energy_by_share{kind}"] = by_share(sizes[kind])
        return measured | {"rank_saved": measured["rank_shuffled"] - measured["rank"]}

    def verdict(self, results: Results) -> Verdict:
        """Supported if enough heads have their energy in few singular values, and much more than both controls.

        Not testable if rows are so uniform that the shuffled matrices have low rank, too.
        """
        kinds = ("", "_shuffled", "_random")
        heads = list(
            zip(*([unit.mean for unit in results.statistics[f"energy{kind}"].units] for kind in kinds), strict=True)
        )
        testable_heads = [head for head in heads if head[1] < thresholds.LOW_RANK_ENERGY]
        low = sum(_stands_out(*head) for head in testable_heads)
        value = {kind: results.statistics[f"energy{kind}"].estimate.value for kind in kinds}
        saved = results.statistics["rank_saved"].estimate
        why = (
            f"{low} of {len(heads)} heads have {thresholds.LOW_RANK_ENERGY:.0%} of the squared singular values in "
            f"{thresholds.LOW_RANK_SHARE:.0%} of them, and a rest of at most {thresholds.LOW_RANK_LEFT:g} times that "
            f"of shuffled rows and of random keys; {thresholds.HEADS_SHARE:.0%} are needed. "
            f"{len(heads) - len(testable_heads)} have rows so uniform that shuffled rows have low rank, "
            f"too. Mean {value['']:.3f}, shuffled rows {value['_shuffled']:.3f}, random keys "
            f"{value['_random']:.3f}. Effective rank over tokens is lower than with shuffled rows by {saved.value:.3f}"
        )
        if len(testable_heads) < thresholds.HEADS_SHARE * len(heads):
            return Verdict("not testable", why)
        return by_heads(low, len(heads), why)


def _stands_out(energy: float, *controls: float) -> bool:
    """Return whether a matrix has low rank, and much lower than its controls."""
    remainder = 1 - energy
    return energy >= thresholds.LOW_RANK_ENERGY and all(
        remainder <= thresholds.LOW_RANK_LEFT * (1 - control) for control in controls
    )


def attention_matrices(layer: Layer) -> tuple[Matrices, Matrices]:
    """Return a layer's attention matrices, and those of random queries and keys."""
    if pursues(layer):
        pursued = traces(layer)
        steps = [run[-1] for run in (pursued.own, pursued.random)]
        learned, random = (attention_weights(step.query, step.inner) for step in steps)
        return learned, random
    symmetric = torch.equal(layer.q, layer.k)
    k = layer.gaussian("random k") * layer.k.std((-2, -1), keepdim=True)
    q = k if symmetric else layer.gaussian("random q") * layer.q.std((-2, -1), keepdim=True)
    return attention_weights(layer.q, layer.k), attention_weights(q, k)


def shuffled_rows(matrices: Matrices, layer: Layer) -> Matrices:
    """Shuffle the entries of each row by itself: the rows keep their entropy but lose their common structure."""
    shuffled = matrices.clone()
    for number, image in enumerate(layer.ids):
        rng = generator(sample_key(layer.seed, f"shuffled rows/{layer.index}", image))
        mixed = torch.from_numpy(rng.permuted(matrices[number].cpu().numpy(), axis=-1))
        shuffled[number] = mixed.to(matrices)
    return shuffled


def singular_values(matrices: Matrices) -> Sizes:
    """Return the singular values, largest first, from the eigenvalues of A^T A; accurate to 10^-8 of the largest."""
    squares = torch.linalg.eigvalsh(matrices.transpose(-2, -1) @ matrices)
    values: Tensor = squares.clamp_min(0).flip(-1).sqrt()
    return values


def energy(sizes: Sizes, share: float) -> Float[Tensor, "images heads"]:
    """Return the fraction of the squares in the largest `share` of the singular values (their number is rounded up)."""
    count = math.ceil(share * sizes.shape[-1] - 1e-9)
    squares = sizes.square()
    leading: Tensor = squares[..., :count].sum(-1) / squares.sum(-1)
    return leading


def by_share(sizes: Sizes) -> Float[Tensor, "images heads points"]:
    """Return the fraction of the squares in the largest 1/20, 2/20, ..., 1 of the singular values."""
    return torch.stack([energy(sizes, (point + 1) / POINTS) for point in range(POINTS)], -1)


CLAIM = SingularValues()
