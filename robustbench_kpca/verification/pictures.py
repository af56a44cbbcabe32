"""Our corrupted pictures beside those of the installed library `imagecorruptions`, cell by cell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.progress import Progress
from robustbench_kpca.corruptions import OTHER_DRAWS, PREFIX, PROFILE, Cell, Mode, corrupt_one, frost_pictures
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import CLEAN_CELL, Corruption, Override

DRAWS = 20  # pictures of each image, where only distributions can be compared
CHANCE = 0.01  # that any cell of a run differs by chance, if all distributions are equal
SHARE = 0.003  # of the values of a picture without random numbers that mode `fast` may move, by one level
_LEAST = 32
_STATISTICS = 6
_CHANNELS = 3
Picture = NDArray[np.uint8]
Images = Sequence[tuple[str, Picture]]
"""Ids and uint8 pictures (height, width, 3)."""


@dataclass(frozen=True)
class Gap:
    """How far our pictures are from the library's.

    kind: `values`: the same seed, so that every value can be compared. `statistics`: other random numbers.
    value: the share of values that differ; or the largest |t| of Welch's test over its limit (see `distribution_gap`).
    levels: the largest difference of two values, from 0 to 255; 0 if `kind` is `statistics`.
    allowed: above this `value` the cell does not agree.
    """

    kind: Literal["values", "statistics"]
    value: float
    levels: int
    allowed: float

    @property
    def agrees(self) -> bool:
        """Whether nothing speaks against equal pictures, or equal distributions."""
        return self.value <= self.allowed and self.levels <= 1


@dataclass(frozen=True)
class CellAgreement:
    """One corruption at one severity: both of our modes against the library."""

    corruption: str
    severity: int
    exact: Gap
    fast: Gap

    @property
    def agrees(self) -> bool:
        """Whether both modes agree with the library."""
        return self.exact.agrees and self.fast.agrees


def corruption_protocol(protocol: str, overrides: dict[str, Override]) -> Corruption | None:
    """Return a protocol if it is one of generated corruptions, None if it is of another kind.

    Raises:
        BadInputError: unknown or invalid protocol, or stored corruptions, which the library has not made.
    """
    label, scenario = load_scenario(protocol, overrides)
    if not isinstance(scenario, Corruption):
        return None
    if scenario.mode == "stored":
        raise BadInputError(f"protocol '{label}' reads stored pictures", expected="mode = 'fast' or 'exact'")
    return scenario


def pictures_of(data: Dataset) -> Images:
    """Return ids and uint8 pictures of a data set.

    Raises:
        BadInputError: a picture is smaller than 32 x 32, which the library refuses.
    """
    images = [(sample, np.asarray(data.image(index))) for index, sample in enumerate(data.ids)]
    for sample, picture in images:
        if min(picture.shape[:2]) < _LEAST:
            raise BadInputError(
                f"image '{sample}' of {picture.shape[1]} x {picture.shape[0]} pixels",
                expected=f"at least {_LEAST} x {_LEAST}, as the library needs",
            )
    return images


def compare_pictures(
    protocol: Corruption, images: Images, seed: int = 0, progress: Progress | None = None
) -> list[CellAgreement]:
    """Compare every cell of a protocol with the library's, on the same images.

    Where both draw from the same stream, mode `exact` must give the library's bytes. Mode `fast` has other random
    numbers, and so has the library's impulse noise: there, statistics of `DRAWS` pictures are compared.

    Raises:
        BadInputError: parameters other than the library's, or the library cannot be imported.
    """
    if protocol.profile != PROFILE:
        raise BadInputError(
            f"the library has no parameters of profile '{protocol.profile}'",
            expected=f"profile = '{PROFILE}'",
            fix=f"add --set profile={PROFILE}, or use the protocol common-corruptions",
        )
    cells = [(name.removeprefix(PREFIX), severity) for name, severity in protocol.cells if name != CLEAN_CELL]
    done = []
    for number, (name, severity) in enumerate(cells):
        done.append(_compare(name, severity, images, seed, len(cells)))
        if progress is not None:
            progress(number + 1, len(cells))
    return done


def _compare(name: str, severity: int, images: Images, seed: int, cells: int) -> CellAgreement:
    def draw(who: str, mode: Mode, number: int) -> list[Picture]:
        cell = Cell(who + name, severity, PROFILE, mode, seed=seed, frost=str(frost_pictures()))
        return [corrupt_one(picture, cell, f"{sample}/{number}") for sample, picture in images]

    def sample(who: str, mode: Mode, first: int) -> NDArray[np.float64]:
        drawn = (draw(who, mode, first + number) for number in range(DRAWS))
        return np.stack([_statistics(pictures, images) for pictures in drawn])

    library, again = (draw(PREFIX, "exact", number) for number in (0, 1))
    fixed = all(np.array_equal(*both) for both in zip(library, again, strict=True))
    theirs = None if fixed else sample(PREFIX, "exact", 0)

    def gap(mode: Mode, allowed: float, *, same_draws: bool) -> Gap:
        if theirs is None or same_draws:
            return _value_gap(draw("", mode, 0), library, allowed)
        return Gap("statistics", distribution_gap(sample("", mode, DRAWS), theirs, cells), 0, 1.0)

    exact = gap("exact", 0.0, same_draws=name not in OTHER_DRAWS)
    return CellAgreement(name, severity, exact, gap("fast", SHARE, same_draws=False))


def _value_gap(ours: list[Picture], theirs: list[Picture], allowed: float) -> Gap:
    gaps = np.concatenate([np.abs(a.astype(int) - b).ravel() for a, b in zip(ours, theirs, strict=True)])
    return Gap("values", float((gaps > 0).mean()), int(gaps.max()), allowed)


def _statistics(pictures: list[Picture], images: Images) -> NDArray[np.float64]:
    """Return, by channel and in the mean over pictures: mean, std, distance, variation, shares of 0 and of 255."""
    rows = []
    for picture, (_, clean) in zip(pictures, images, strict=True):
        values, place = picture.astype(float), (0, 1)
        steps = [np.abs(np.diff(values, axis=axis)).mean(place) for axis in place]
        ends = [(picture == level).mean(place) for level in (0, 255)]
        distance = np.abs(values - clean).mean(place)
        rows.append(np.stack([values.mean(place), values.std(place), distance, steps[0] + steps[1], *ends]))
    mean: NDArray[np.float64] = np.stack(rows).mean(0).ravel()
    return mean


def distribution_gap(ours: NDArray[np.float64], theirs: NDArray[np.float64], cells: int) -> float:
    """Return the largest |t| of Welch's test between two samples of statistics, over its limit.

    Samples are (draw, statistic). The limit is two-sided and Bonferroni's over the statistics of all `cells`, at the
    fewest degrees of freedom that Welch allows: above 1, the distributions differ.
    """
    gap = np.abs(ours.mean(0) - theirs.mean(0))
    error = np.sqrt(ours.var(0, ddof=1) / len(ours) + theirs.var(0, ddof=1) / len(theirs))
    constant = error < 1e-9
    t = np.where(constant, np.where(gap < 1e-9, 0.0, np.inf), gap / np.where(constant, 1.0, error))
    family = 2 * _STATISTICS * _CHANNELS * cells  # both modes
    return float(t.max()) / float(stats.t.isf(CHANCE / (2 * family), min(len(ours), len(theirs)) - 1))
