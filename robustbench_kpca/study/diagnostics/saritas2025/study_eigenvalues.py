"""The study's eigenvalue statistics: standardised keys, on 25 images.

Source: Sarıtaş & Yıldız (2025), arXiv:2505.07908. Eigenvalues descend as they are, then lose their sign; the first D
are averaged over all heads rank by rank, and summarised. Only rounding can make them ascend, so the mean over heads of
a head's summary is the same number; see `claims.eigenvalues.summaries`.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict
from robustbench_kpca.study.diagnostics.claims.eigenvalues import REPORTED, summaries
from robustbench_kpca.study.diagnostics.diagnosis import finding
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.saritas2025 import _gram

_TEO = "Teo & Nguyen (2024), arXiv:2406.13762, section 2.2.2"
_REPORTED = {"largest": "max", "smallest": "min", "mean": "mean", "median": "median"}


class StudyEigenvalues:
    """Maximum, minimum, mean and median of the first D eigenvalues."""

    title = "The study's protocol: eigenvalues with standardised keys"
    source = _gram.SOURCE
    statistics: ClassVar[Mapping[str, Statistic]] = {
        name: Statistic(f"{word} of the first D eigenvalues") for name, word in _REPORTED.items()
    }
    profiles: ClassVar[Mapping[str, str]] = {"by_rank": "|eigenvalue| by rank"}

    def applies(self, layer: Layer) -> bool:  # noqa: ARG002
        """Return True: every attention layer has keys."""
        return True

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Decompose head by head."""

        def measure(image: int, head: int) -> dict[str, Tensor]:
            gram, _ = _gram.centred_gram(_gram.standardised(layer.k[image, head]))
            values = torch.linalg.eigvalsh(gram).flip(-1).abs()[: layer.width]
            return {"by_rank": torch.nn.functional.pad(values, (0, layer.width - len(values)))}

        eigenvalues = _gram.head_by_head(layer, measure)
        return eigenvalues | summaries(eigenvalues["by_rank"], "")

    def verdict(self, results: Results) -> Verdict:
        """Return no verdict, and the comparison with the numbers of the original paper."""
        return _gram.not_judged(
            tuple(
                finding(f"{word} {REPORTED[word]}", _TEO, name, results.statistics[name].estimate,
                        least=REPORTED[word] / 2, most=REPORTED[word] * 2)
                for name, word in _REPORTED.items()
            )
        )  # fmt: skip


CLAIM = StudyEigenvalues()
