"""Claim: the centred Gram matrix of the keys has the reported eigenvalues; they are compared with a proven bound.

Reported: Teo & Nguyen (2024), arXiv:2406.13762, section 2.2.2 and figure 2. Not reproduced by Sarıtaş & Yıldız (2025),
arXiv:2505.07908, who standardise the keys first.
"""

import statistics
from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict
from robustbench_kpca.study.diagnostics.kernel import sharp_bound, trace_bound
from robustbench_kpca.study.diagnostics.layer import Layer

REPORTED = {"max": 648.46, "min": 4.65, "mean": 40.07, "median": 17.73}


class Eigenvalues:
    """Averages |eigenvalue| by rank over heads, layers and images; the reported numbers summarise such a profile."""

    title = "The Gram matrix of the keys has the reported eigenvalues"
    source = "Teo & Nguyen (2024), arXiv:2406.13762, section 2.2.2: " + ", ".join(
        f"{name} {value}" for name, value in REPORTED.items()
    )
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "largest": Statistic("largest eigenvalue"),
        "bound": Statistic("max_j 1 / g(k_j), an upper bound on the eigenvalues, below 1"),
        "smallest": Statistic("smallest of the first D eigenvalues"),
        "mean": Statistic("mean of the first D eigenvalues"),
        "median": Statistic("median of the first D eigenvalues"),
        "share_of_bound": Statistic("largest eigenvalue / bound; at most 1"),
        "largest_standardised": Statistic("largest eigenvalue, keys standardised"),
        "smallest_standardised": Statistic("smallest of the first D eigenvalues, keys standardised"),
        "mean_standardised": Statistic("mean of the first D eigenvalues, keys standardised"),
        "median_standardised": Statistic("median of the first D eigenvalues, keys standardised"),
        "bound_standardised": Statistic("max_j 1 / g(k_j), keys standardised: below exp(-(D - 1) / sqrt(D))"),
        "trace_bound_standardised": Statistic("N exp(-(D - 1) / sqrt(D)), a bound on the trace, keys standardised"),
    }
    profiles: ClassVar[Mapping[str, str]] = {
        "by_rank": "|eigenvalue| by rank",
        "by_rank_standardised": "the same, keys standardised",
        "by_rank_standardised_bound": "N exp(-(D - 1) / sqrt(D)) / rank, which no eigenvalue of that rank exceeds",
    }

    def applies(self, layer: Layer) -> bool:  # noqa: ARG002
        """Return True: every attention layer has keys."""
        return True

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Compute the first D eigenvalues, with raw and with standardised keys."""
        raw, scaled = layer.spectrum, layer.standardised_spectrum
        by_rank, by_rank_scaled = (part.eigenvalues(layer.width) for part in (raw, scaled))
        bound, bound_scaled = sharp_bound(raw.log_g), sharp_bound(scaled.log_g)
        by_trace = trace_bound(layer.k.shape[-2], layer.width)
        by_number = by_trace / torch.arange(1, layer.width + 1, dtype=by_rank.dtype, device=by_rank.device)
        return {
            **summaries(by_rank, ""),
            "bound": bound,
            "share_of_bound": by_rank[..., 0] / bound.clamp_min(1e-300),
            **summaries(by_rank_scaled, "_standardised"),
            "bound_standardised": bound_scaled,
            "trace_bound_standardised": bound_scaled.new_full(bound_scaled.shape, by_trace),
            "by_rank": by_rank,
            "by_rank_standardised": by_rank_scaled,
            "by_rank_standardised_bound": by_number.expand_as(by_rank),
        }

    def verdict(self, results: Results) -> Verdict:
        """Supported if all four numbers are reproduced within a factor, with or without standardisation."""
        summaries, reproduced = [], False
        for name, by_rank in results.profiles.items():  # heads of another width have their own profiles
            if "bound" in name:
                continue
            words = "standardised" if "standardised" in name else "raw"
            summary = summarise(by_rank.mean)
            reproduced |= all(_near(summary[key], value) for key, value in REPORTED.items())
            summaries.append(f"keys {words}: " + ", ".join(f"{key} {value:.3g}" for key, value in summary.items()))
        why = (
            f"{'; '.join(summaries)}. All four must be within a factor of {thresholds.EIGENVALUE_FACTOR:g}. For any "
            "keys, the eigenvalues of this matrix are below 1: they are at most max_j 1 / g(k_j)"
        )
        return Verdict("supported" if reproduced else "not supported", why)


def summaries(by_rank: Float[Tensor, "images heads ranks"], kind: str) -> dict[str, Tensor]:
    """Return the four summaries of each head's eigenvalues, which must descend.

    The study averages every rank over heads, then summarises. For descending values each summary is linear, so the
    mean of a summary over heads is the summary of the means.
    """
    middle = by_rank[..., (by_rank.shape[-1] - 1) // 2], by_rank[..., by_rank.shape[-1] // 2]
    return {
        f"largest{kind}": by_rank[..., 0],
        f"smallest{kind}": by_rank[..., -1],
        f"mean{kind}": by_rank.mean(-1),
        f"median{kind}": (middle[0] + middle[1]) / 2,
    }


def summarise(by_rank: tuple[float, ...]) -> dict[str, float]:
    """Return maximum, minimum, mean and median over the ranks, in the order of the paper."""
    return {
        "max": max(by_rank),
        "min": min(by_rank),
        "mean": statistics.fmean(by_rank),
        "median": statistics.median(by_rank),
    }


def _near(measured: float, reported: float) -> bool:
    return reported / thresholds.EIGENVALUE_FACTOR <= measured <= reported * thresholds.EIGENVALUE_FACTOR


CLAIM = Eigenvalues()
