"""Corruption accuracy: the mean over all cells (corruption x severity) of the share of images classified correctly.

100 % minus this is the unnormalised mean corruption error; it is not the mCE of Hendrycks & Dietterich (2019,
arXiv:1903.12261), which divides by AlexNet's errors. Each sample's score is its share of cells answered correctly.
"""

import numpy as np

from robustbench_kpca.metrics import Metric, Scores
from robustbench_kpca.outcomes import Outcomes


def _scores(outcomes: Outcomes) -> Scores:
    samples, row = np.unique(outcomes["sample"].astype(str), return_inverse=True)
    hits = np.bincount(row, weights=outcomes.correct.astype(float))
    return Scores(samples.astype(object), hits / np.bincount(row))


METRIC = Metric("corruption_accuracy", "Corruption accuracy", ("corruption",), _scores)
