"""Running sums of a claim's statistics over all images, and the results computed from them.

Means and variances over batches of rows: Chan, Golub & LeVeque (1979). Only sums are stored, so memory does not grow
with the number of images.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.records.estimate import CONFIDENCE, Estimate, holm
from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.claims import Claim, Results, Statistic
from robustbench_kpca.study.diagnostics.diagnosis import LayerProfile, Measured, Null, Profile, Unit

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
        gap, centred = mean - self.mean, rows - mean
        total = self.n + n
        self.products = (
            self.products + np.einsum("iac,ibc->abc", centred, centred) + gap * gap[:, None] * (self.n * n / total)
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


UnitName = tuple[int, int]
"""Layer and head."""


class Permuted:
    """Null model of a statistic: its sums under many permutations of the images within blocks.

    All heads share the permutations, so a draw is the same for a head and for the model. This is an exact permutation
    test (Pitman 1937) of the hypothesis that the order of the images does not matter; p by the add-one rule (Phipson &
    Smyth 2010).
    """

    def __init__(self, draws: int, units: int) -> None:
        self.sums = np.zeros((draws, units))
        self.observed = np.zeros(units)
        self.by_chance = np.zeros(units)
        self.images = self.pairs = 0
        self.log_distinct = 0.0

    def add(self, pairs: Values, orders: NDArray[np.int64]) -> None:
        """Add values of shape (images, images, units); `orders` is (draws, images)."""
        n = len(pairs)
        diagonal = pairs[np.arange(n), np.arange(n)].sum(0)
        self.observed += diagonal
        self.by_chance += pairs.sum((0, 1)) - diagonal
        for image in range(n):
            self.sums += pairs[image, orders[:, image]]
        self.images += n
        self.pairs += n * (n - 1)
        self.log_distinct += math.lgamma(n + 1)

    def nulls(self, statistic: Statistic) -> tuple[Null | None, list[Null | None]]:
        """Return the null model of the mean over all units, and of each unit."""
        if not self.pairs:
            return None, [None] * len(self.observed)
        each: list[Null | None] = [self._null(statistic, unit) for unit in range(len(self.observed))]
        return self._null(statistic, slice(None)), each

    def _null(self, statistic: Statistic, units: int | slice) -> Null:
        def over(values: Values) -> Values:
            chosen = values[..., units]
            return np.asarray(chosen if isinstance(units, int) else chosen.mean(-1))

        draws, observed = over(self.sums) / self.images, float(over(self.observed)) / self.images
        sign = -1.0 if statistic.better == "less" else 1.0
        slack = 1e-12 * max(1.0, abs(observed))  # tolerance for rounding: a draw may equal the observed order
        extreme = int((sign * draws >= sign * observed - slack).sum())
        spread = float(draws.std())
        return Null(
            what=statistic.null,
            draws=len(draws),
            chance=float(over(self.by_chance)) / self.pairs,
            z=sign * (observed - float(draws.mean())) / spread if spread > slack else None,
            p=(extreme + 1) / (len(draws) + 1),
            least_p=max(1 / (len(draws) + 1), math.exp(-self.log_distinct)),
        )


@dataclass
class Kept:
    """Running moments of one statistic: of each head, and of the mean over heads."""

    units: list[UnitName]
    values: Moments = field(default_factory=Moments)
    overall: Moments = field(default_factory=Moments)
    permuted: Permuted | None = None


@dataclass
class KeptRatio:
    """Running moments of the logarithm of a mean, or of the ratio of two means."""

    layers: RatioMoments = field(default_factory=RatioMoments)
    overall: RatioMoments = field(default_factory=RatioMoments)


@dataclass
class Totals:
    """Running moments of all statistics and profiles of one claim."""

    claim: Claim
    units: Sequence[UnitName]
    draws: int
    sums: dict[str, Kept] = field(default_factory=dict)
    ratios: dict[str, KeptRatio] = field(default_factory=dict)
    profiles: dict[str, dict[int, Moments]] = field(default_factory=dict)
    broken: str = ""

    def add(self, layers: Sequence[Mapping[str, Tensor]], orders: NDArray[np.int64]) -> None:
        """Add the claim's observations in each layer on one block of images."""
        numbers = iter(self.units)
        units = [list(islice(numbers, layer[self._always].shape[-1])) for layer in layers]
        for name, statistic in self.claim.statistics.items():
            if statistic.log10_of:
                self._add_ratio(name, statistic.log10_of, layers)
                continue
            present = [number for number, layer in enumerate(layers) if name in layer]
            if present:
                values = np.concatenate([layers[number][name].cpu().numpy() for number in present], -1)
                self._add(name, statistic, values, [unit for number in present for unit in units[number]], orders)
        for name in self.claim.profiles:
            for number, layer in enumerate(layers):
                if name in layer:
                    self._add_profile(name, units[number][0][0], layer[name].cpu().numpy())

    @property
    def _always(self) -> str:
        """Name of a statistic that every layer has."""
        return next(name for name, statistic in self.claim.statistics.items() if not statistic.log10_of)

    def _add(
        self, name: str, statistic: Statistic, values: Values, units: list[UnitName], orders: NDArray[np.int64]
    ) -> None:
        sums = self.sums.setdefault(name, Kept(units))
        if not np.isfinite(values).all():
            layer, head = units[int(np.argwhere(~np.isfinite(values))[0, -1])]
            self.broken = self.broken or f"{name} is not a finite number in head {head} of layer {layer}"
            return
        if statistic.null:
            if sums.permuted is None:
                sums.permuted = Permuted(self.draws, len(units))
            sums.permuted.add(values, orders)
            values = values[np.arange(len(values)), np.arange(len(values))]
        sums.values.add(values)
        sums.overall.add(values.mean(-1))

    def _add_ratio(self, name: str, of: tuple[str, ...], layers: Sequence[Mapping[str, Tensor]]) -> None:
        parts = [[layer[part].cpu().numpy() for layer in layers] for part in of]
        if not all(np.isfinite(part).all() for whole in parts for part in whole):
            return  # recorded with the statistic itself
        by_layer = [np.stack([part.mean(-1) for part in whole], -1) for whole in parts]
        overall = [np.concatenate(whole, -1).mean(-1, keepdims=True) for whole in parts]
        sums = self.ratios.setdefault(name, KeptRatio())
        for moments, rows in ((sums.layers, by_layer), (sums.overall, overall)):
            moments.add(rows[0], rows[1] if len(rows) > 1 else np.ones_like(rows[0]))

    def _add_profile(self, name: str, layer: int, values: Values) -> None:
        self.profiles.setdefault(name, {}).setdefault(layer, Moments()).add(values.reshape(-1, values.shape[-1]))

    def results(self) -> Results:
        """Compute the results from the running sums."""
        measured = {}
        for name, statistic in self.claim.statistics.items():
            if name in self.sums and self.sums[name].values.n:
                measured[name] = self._measured(statistic, self.sums[name])
            elif name in self.ratios:
                measured[name] = self._ratio(statistic, self.ratios[name])
        profiles = {
            name: _profile(self.claim.profiles[name], by_layer)
            for name, by_layer in self.profiles.items()
            if all(np.isfinite(moments.mean).all() for moments in by_layer.values())
        }
        return Results(measured, profiles, self.broken)

    def _measured(self, statistic: Statistic, sums: Kept) -> Measured:
        null: Null | None = None
        nulls: list[Null | None] = [None] * len(sums.units)
        if sums.permuted is not None:
            null, nulls = sums.permuted.nulls(statistic)
        p_values = holm([null.p for null in nulls if null is not None])
        units = []
        for number, (layer, head) in enumerate(sums.units):
            of_head = nulls[number]
            by_chance = {} if of_head is None else {"chance": of_head.chance, "z": of_head.z, "p": of_head.p}
            mean, deviation = float(sums.values.mean[number]), float(sums.values.deviation[number])
            adjusted = p_values[number] if p_values else None
            units.append(Unit(layer=layer, head=head, mean=mean, deviation=deviation, p_holm=adjusted, **by_chance))
        return Measured(
            what=statistic.what,
            better=statistic.better,
            estimate=sums.overall.estimate(),
            null=null,
            units=tuple(units),
        )

    def _ratio(self, statistic: Statistic, sums: KeptRatio) -> Measured:
        order = {layer: number for number, layer in enumerate(dict.fromkeys(layer for layer, _ in self.units))}
        values, deviations = sums.layers.value, sums.layers.deviation
        units = tuple(
            Unit(layer=layer, head=head, mean=float(values[order[layer]]), deviation=float(deviations[order[layer]]))
            for layer, head in self.units
        )
        return Measured(
            what=statistic.what, better=statistic.better, estimate=sums.overall.estimate(), null=None, units=units
        )


def _profile(what: str, by_layer: Mapping[int, Moments]) -> Profile:
    rows = sum(moments.n for moments in by_layer.values())
    mean = sum(moments.mean * (moments.n / rows) for moments in by_layer.values())
    layers = tuple(
        LayerProfile(layer=layer, mean=_numbers(moments.mean), deviation=_numbers(moments.deviation))
        for layer, moments in sorted(by_layer.items())
    )
    return Profile(what=what, mean=_numbers(np.asarray(mean)), layers=layers)


def _numbers(values: Values) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def draws_for(units: int) -> int:
    """Return the number of draws of the null model for `units` heads."""
    return max(thresholds.LEAST_DRAWS, thresholds.DRAWS_PER_HEAD * units)


def block_orders(seed: int, block: str, draws: int, images: int) -> NDArray[np.int64]:
    """Return (draws, images): random permutations of one block's images."""
    rng = generator(sample_key(seed, "permutations", block))
    return rng.permuted(np.tile(np.arange(images), (draws, 1)), axis=1)
