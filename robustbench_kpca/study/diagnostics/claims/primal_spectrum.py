"""Claim: a Primal layer's kernel matrix has a lower rank than canonical attention of the same queries and keys.

Source: Chen et al. (2023), arXiv:2305.19798, who plot how much of the singular values' squares the leading ones hold,
for Primal and canonical attention. A cosine kernel of heads of width D has at most rank D whatever it has learned, so
the same is done with Gaussian queries and keys. The decay of a twin with softmax attention is the claim
`singular_values` on that twin; `rbk diagnose --compare` draws both.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from robustbench_kpca.attention.primal import PrimalScores
from robustbench_kpca.models.mixing import attention_weights
from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict, by_heads, heads_ahead
from robustbench_kpca.study.diagnostics.claims.primal_objective import feature_maps, is_primal, learned
from robustbench_kpca.study.diagnostics.claims.singular_values import Matrices, by_share, energy, singular_values
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.pursuits import effective_rank

_KINDS = {
    "": "the kernel matrix K = A B^T",
    "_canonical": "softmax(q k^T / sqrt(D)) of the layer's own q and k",
    "_scores": "e Lambda^2 r^T, what the layer's scores represent, of the rank that it is built with",
    "_random": "K of Gaussian queries and keys with the head's scale",
    "_canonical_random": "softmax of these",
}


class PrimalSpectrum:
    """Compares the decay of singular values with that of canonical attention, for own and for Gaussian q and k."""

    title = "Primal attention has a lower rank than canonical attention"
    source = "Chen et al. (2023), arXiv:2305.19798, on the spectrum of attention matrices"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "energy_beyond_random": Statistic("energy_gained minus that of Gaussian queries and keys", "more"),
        "energy_gained": Statistic("energy of K minus that of canonical attention of the same q and k", "more"),
        **{
            f"energy{kind}": Statistic(f"share of the squared singular values in the largest tenth of them: {what}")
            for kind, what in _KINDS.items()
        },
        **{f"rank{kind}": Statistic(f"effective rank over tokens: {what}") for kind, what in _KINDS.items()},
    }
    profiles: ClassVar[Mapping[str, str]] = {
        f"energy_by_share{kind}": f"cumulative share of the squared singular values: {what}"
        for kind, what in _KINDS.items()
    }

    applies = staticmethod(is_primal)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Compute the singular values of five matrices."""
        measured: dict[str, Tensor] = {}
        for kind, matrices in _matrices(layer).items():
            sizes = singular_values(matrices)
            measured[f"energy{kind}"] = energy(sizes, thresholds.LOW_RANK_SHARE)
            measured[f"rank{kind}"] = effective_rank(sizes) / sizes.shape[-1]
            measured[f"energy_by_share{kind}"] = by_share(sizes)
        gained = measured["energy"] - measured["energy_canonical"]
        by_chance = measured["energy_random"] - measured["energy_canonical_random"]
        return measured | {"energy_gained": gained, "energy_beyond_random": gained - by_chance}

    def verdict(self, results: Results) -> Verdict:
        """Supported if, in enough heads, K's singular values decay faster, and by more than with random q and k."""
        gained, beyond = results.statistics["energy_gained"], results.statistics["energy_beyond_random"]
        faster = heads_ahead(gained)
        both = sum(ahead and exceeds for ahead, exceeds in zip(faster, heads_ahead(beyond), strict=True))
        value = {name: statistic.estimate.value for name, statistic in results.statistics.items()}
        why = (
            f"{both} of {len(faster)} heads have a kernel matrix whose leading {thresholds.LOW_RANK_SHARE:.0%} of the "
            f"singular values hold more than those of canonical attention, by more than for Gaussian queries and keys "
            f"(Holm's p <= {thresholds.SIGNIFICANCE}; {sum(faster)} without the latter); "
            f"{thresholds.HEADS_SHARE:.0%} are needed. Mean {value['energy']:.3f}, canonical "
            f"{value['energy_canonical']:.3f}; of Gaussian q and k {value['energy_random']:.3f} and "
            f"{value['energy_canonical_random']:.3f}"
        )
        return by_heads(both, len(faster), why, paired=gained)


def _matrices(layer: Layer) -> dict[str, Matrices]:
    scores: PrimalScores = layer.module.scores  # type: ignore[assignment]
    q, k = (
        layer.gaussian(f"random {name}") * x.std((-2, -1), keepdim=True) for name, x in (("q", layer.q), ("k", layer.k))
    )
    (a, b), (c, d) = (feature_maps(inputs, scores) for inputs in (layer, replace(layer, q=q, k=k)))
    w_e, w_r, lam = learned(layer)
    return {
        "": a @ b.transpose(-2, -1),
        "_canonical": attention_weights(layer.q, layer.k),
        "_scores": (a @ w_e * lam.square().unsqueeze(-2)) @ (b @ w_r).transpose(-2, -1),
        "_random": c @ d.transpose(-2, -1),
        "_canonical_random": attention_weights(q, k),
    }


CLAIM = PrimalSpectrum()
