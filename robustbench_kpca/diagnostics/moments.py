"""Means and variances of rows that arrive in parts, of single numbers and of the ratio of two means.

Chan, Golub & LeVeque (1979): nothing but sums is kept, so that memory does not grow with the number of images.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from robustbench_kpca.records.estimate import CONFIDENCE, Estimate

Values = NDArray[np.float64]
METHOD = "student"


class Moments:
    """Mean and variance of rows."""

    def __init__(self) -> None:
        self.n = 0
        self.mean: Values = np.zeros(())
        self.squares: Values = np.zeros(())

    def add(self, rows: Values) -> None:
        """Take (rows, ...) in."""
        n, mean = len(rows), rows.mean(0)
        gap = mean - self.mean
        total = self.n + n
        self.mean = self.mean + gap * (n / total)
        self.squares = self.squares + ((rows - mean) ** 2).sum(0) + gap**2 * (self.n * n / total)
        self.n = total

    @property
    def deviation(self) -> Values:
        """Of the sample; 0 for a single row."""
        return np.asarray(np.sqrt(self.squares / max(self.n - 1, 1)))

    def estimate(self) -> Estimate:
        """Return mean and Student's interval (Gosset 1908) of scalar rows; a single row has no interval but itself."""
        return _estimate(float(self.mean), float(self.deviation), self.n)


class RatioMoments:
    """The logarithm of the ratio of two means, cell by cell: means first, so that large rows count as they are.

    With means x and y, log10(x / y) has the deviation of (x_i / x - y_i / y) / ln 10 over rows i: the delta method.
    """

    def __init__(self) -> None:
        self.n = 0
        self.mean: Values = np.zeros((2, 1))
        self.products: Values = np.zeros((2, 2, 1))

    def add(self, over: Values, under: Values) -> None:
        """Take (rows, cells) of both in; they are positive."""
        rows = np.stack([over, under], 1)
        n, mean = len(rows), rows.mean(0)
        gap, apart = mean - self.mean, rows - mean
        total = self.n + n
        self.products = (
            self.products + np.einsum("iac,ibc->abc", apart, apart) + gap * gap[:, None] * (self.n * n / total)
        )
        self.mean = self.mean + gap * (n / total)
        self.n = total

    @property
    def value(self) -> Values:
        """log10 of the ratio, (cells)."""
        return np.asarray(np.log10(self.mean[0]) - np.log10(self.mean[1]))

    @property
    def deviation(self) -> Values:
        """Of one row's share in it, (cells)."""
        relative = self.products / self.mean / self.mean[:, None] / max(self.n - 1, 1)
        variance = relative[0, 0] + relative[1, 1] - 2 * relative[0, 1]
        return np.asarray(np.sqrt(variance.clip(min=0)) / math.log(10))

    def estimate(self) -> Estimate:
        """Return value and interval of the only cell."""
        return _estimate(float(self.value[0]), float(self.deviation[0]), self.n)


def _estimate(value: float, deviation: float, n: int) -> Estimate:
    margin = 0.0
    if n > 1:
        margin = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * deviation / math.sqrt(n)
    return Estimate(value, value - margin, value + margin, n, METHOD)
