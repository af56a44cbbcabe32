"""The reproduction study's own measurements, as its code makes them: the literal twin of `diagnostics.claims`.

Sarıtaş & Yıldız (2025), arXiv:2505.07908. Members are its scripts. They have no null model, and give no verdict: the
numbers stand beside the published ones, and the claims are judged by the corrected measurements. Departures: double
precision; and random numbers, of which the study's draws are not known.
"""

from robustbench_kpca._core.registry import Family

STUDY = Family("measurement of saritas2025", __name__, "CLAIM")
IMAGES = {"study_value_vectors": 100, "study_norms": 1, "study_eigenvalues": 25, "study_gammas": 1}
"""Measurements, and how many images each takes."""
