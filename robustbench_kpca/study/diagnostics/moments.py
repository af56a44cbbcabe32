"""Running means and variances over batches of rows, and of the log ratio of two means.

Chan, Golub & LeVeque (1979): only sums are stored, so memory does not grow with the number of images.
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
        """Add values of shape (rows, ...)."""
        n, mean = len(rows), rows.mean(0)
        gap = mean - self.mean
        total = self.n + n
        self.mean = self.mean + gap * (n / total)
        self.squares = self.squares + ((rows - mean) ** 2).sum(0) + gap**2 * (self.n * n / total)
        self.n = total

    @property
    def deviation(self) -> Values:
        """Sample standard deviation; 0 for a single row."""
        return np.asarray(np.sqrt(self.squares / max(self.n - 1, 1)))

    def estimate(self) -> Estimate:
        """Return mean and Student's t interval (Gosset 1908) of scalar rows; for one row the interval is its value."""
        return _estimate(float(self.mean), float(self.deviation), self.n)


class RatioMoments:
    """The logarithm of the ratio of two arithmetic means, for each cell.

    With means x and y, the delta method gives log10(x / y) the deviation of (x_i / x - y_i / y) / ln 10 over rows i.
    """

    def __init__(self) -> None:
        self.n = 0
        self.mean: Values = np.zeros((2, 1))
        self.products: Values = np.zeros((2, 2, 1))

    def add(self, over: Values, under: Values) -> None:
        """Add positive values of both, of shape (rows, cells)."""
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
        """log10 of the ratio, shape (cells)."""
        return np.asarray(np.log10(self.mean[0]) - np.log10(self.mean[1]))

    @property
    def deviation(self) -> Values:
        """Standard deviation of one row's contribution, shape (cells)."""
        relative = self.products / self.mean / self.mean[:, None] / max(self.n - 1, 1)
        variance = relative[0, 0] + relative[1, 1] - 2 * relative[0, 1]
        return np.asarray(np.sqrt(variance.clip(min=0)) / math.log(10))

    def estimate(self) -> Estimate:
        """Return value and confidence interval of the only cell."""
        return _estimate(float(self.value[0]), float(self.deviation[0]), self.n)


def _estimate(value: float, deviation: float, n: int) -> Estimate:
    margin = 0.0
    if n > 1:
        margin = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * deviation / math.sqrt(n)
    return Estimate(value, value - margin, value + margin, n, METHOD)
