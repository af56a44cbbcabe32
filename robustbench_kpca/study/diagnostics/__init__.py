"""Measure the kernel-PCA claims about attention, each compared with its null model."""

from robustbench_kpca._core.registry import Family
from robustbench_kpca.study.diagnostics.saritas2025 import STUDY

CLAIMS = Family("claim", f"{__name__}.claims", "CLAIM", needs=("applies", "observe", "verdict"))
CORRECTED, SARITAS = "corrected", "saritas2025"
PROCEDURES = {CORRECTED: CLAIMS, SARITAS: STUDY}
"""What is measured under each protocol of a diagnosis."""
