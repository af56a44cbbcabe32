"""Errors by corruption and severity: of a model, of AlexNet, by which others are divided, and image by image."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.protocols.corruption_names import SEVERITIES, canonical
from robustbench_kpca.protocols.scenario import CLEAN_CELL
from robustbench_kpca.records.estimate import Estimate, proportion
from robustbench_kpca.records.outcomes import Outcomes

Cell = tuple[str, int]
PerCorruption = dict[str, float]


@dataclass(frozen=True)
class ErrorTable:
    """Top-1 errors in [0, 1] of the model called `name`.

    cells: by (corruption, severity).
    clean: on the same images uncorrupted; None where not measured.
    means: over severities 1 to 5, of corruptions whose errors by severity are not known.
    """

    name: str
    cells: Mapping[Cell, float]
    clean: float | None = None
    means: Mapping[str, float] = field(default_factory=dict)

    @property
    def corruptions(self) -> tuple[str, ...]:
        """Those with errors by severity, in the order of `GROUPS`, others after them."""
        return canonical(corruption for corruption, _ in self.cells)

    @property
    def severities(self) -> tuple[int, ...]:
        """Every severity that occurs, ascending."""
        return tuple(sorted({severity for _, severity in self.cells}))

    def knows(self, corruption: str, severities: Sequence[int]) -> bool:
        """Whether its mean error over these severities is known."""
        each = all((corruption, severity) in self.cells for severity in severities)
        return each or (corruption in self.means and tuple(sorted(severities)) == SEVERITIES)

    def mean_by_corruption(self, corruptions: Sequence[str], severities: Sequence[int]) -> PerCorruption:
        """Return each corruption's mean error over these severities."""
        means, missing = {}, []
        for corruption in corruptions:
            unknown = [severity for severity in severities if (corruption, severity) not in self.cells]
            if not unknown:
                means[corruption] = float(np.mean([self.cells[corruption, severity] for severity in severities]))
            elif corruption in self.means and tuple(severities) == SEVERITIES:
                means[corruption] = self.means[corruption]
            else:
                missing.append(f"{corruption} at severity {', '.join(map(str, unknown))}")
        if missing:
            raise BadInputError(
                f"{self.name} has no error for {'; '.join(missing)}",
                fix="measure it there, leave these corruptions out, or choose another reference",
            )
        return means

    def required_clean(self) -> float:
        """Return the clean error.

        Raises:
            BadInputError: it was not measured.
        """
        if self.clean is None:
            raise BadInputError(
                f"{self.name} has no clean error", fix=f"measure the cell '{CLEAN_CELL}' of severity 0, too"
            )
        return self.clean


ALEXNET_ERRORS: dict[str, tuple[float, float, float, float, float]] = {
    "gaussian_noise": (0.69528, 0.82542, 0.93554, 0.98138, 0.99452),
    "shot_noise": (0.71224, 0.85108, 0.93574, 0.98182, 0.99146),
    "impulse_noise": (0.78374, 0.89808, 0.94870, 0.98720, 0.99548),
    "defocus_blur": (0.65624, 0.73202, 0.85036, 0.91364, 0.94714),
    "glass_blur": (0.64308, 0.75054, 0.88806, 0.91622, 0.93344),
    "motion_blur": (0.58430, 0.70048, 0.82108, 0.89750, 0.92638),
    "zoom_blur": (0.70008, 0.76992, 0.80784, 0.84198, 0.87198),
    "snow": (0.71726, 0.88392, 0.86468, 0.91870, 0.94952),
    "frost": (0.61390, 0.79734, 0.88790, 0.89942, 0.93430),
    "fog": (0.67474, 0.76050, 0.84378, 0.87260, 0.94500),
    "brightness": (0.45140, 0.48502, 0.54048, 0.62166, 0.72440),
    "contrast": (0.64548, 0.76150, 0.88874, 0.97760, 0.99270),
    "elastic_transform": (0.52596, 0.70116, 0.55686, 0.64076, 0.80554),
    "pixelate": (0.52218, 0.54620, 0.73728, 0.87092, 0.91262),
    "jpeg_compression": (0.51002, 0.54718, 0.57294, 0.65458, 0.74778),
}
"""Errors at severities 1 to 5 on ImageNet-C (50,000 images a cell); source: hendrycks/robustness, issue 10."""

ALEXNET_EXTRA_MEANS: dict[str, float] = {
    "speckle_noise": 0.845388,
    "gaussian_blur": 0.787108,
    "spatter": 0.717512,
    "saturate": 0.658248,
}
"""Means over the five severities; errors by severity are not published.

Source: facebookresearch/augmentation-corruption (Mintun, Kirillov & Xie 2021, arXiv:2102.11273), the file
`mCE_baseline_imagenet.p`.
"""

ALEXNET_CLEAN = 0.43478
"""Error on the ImageNet validation images: 1 minus torchvision's published top-1 accuracy of 56.522 %.

Others use 0.4348 (google-research/robustness_metrics) or 0.435 (facebookresearch/augmentation-corruption); the choice
moves the relative mCE by less than 0.1 points.
"""

ALEXNET = ErrorTable(
    "AlexNet",
    {(name, severity): error for name, row in ALEXNET_ERRORS.items() for severity, error in enumerate(row, start=1)},
    ALEXNET_CLEAN,
    ALEXNET_EXTRA_MEANS,
)
"""The reference of ImageNet-C, for its images as stored (224 px, not resized again): for no others."""


Names = NDArray[np.object_]


@dataclass(frozen=True)
class CorruptionGrid:
    """Which images a model got wrong, in every cell of corruptions x severities.

    samples: ids of the images, shape (n,), in order of appearance.
    corruptions: in the order of `GROUPS`, others after them.
    severities: ascending.
    wrong: shape (n, corruptions, severities).
    clean_wrong: shape (n,), of the images uncorrupted; None where not measured.
    """

    samples: Names
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    wrong: NDArray[np.bool_]
    clean_wrong: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, outcomes: Outcomes, top: int = 1) -> "CorruptionGrid":
        """Return which images were wrong in which cell: their label not among the `top` largest logits.

        Raises:
            BadInputError: as `arranged`.
        """
        right = outcomes["rank"] < top
        return cls.arranged(outcomes.numbered("sample"), outcomes.numbered("corruption"), outcomes["severity"], right)

    @classmethod
    def arranged(
        cls,
        numbered_samples: tuple[NDArray[np.int64], Names],
        numbered_corruptions: tuple[NDArray[np.int64], Names],
        severity: NDArray[np.int64],
        correct: NDArray[np.bool_],
    ) -> "CorruptionGrid":
        """Arrange rows, each one image in one cell, in any order; cell `none` of severity 0 holds the clean images.

        Raises:
            BadInputError: a cell is missing, or does not hold each image exactly once.
        """
        (owner, samples), (corruption, corruptions) = numbered_samples, numbered_corruptions
        is_clean, at_zero = (corruptions == CLEAN_CELL)[corruption], severity == 0
        if (is_clean != at_zero).any() or is_clean.all():
            raise BadInputError(
                f"corruptions {', '.join(canonical(corruptions))} at severities {np.unique(severity).tolist()}",
                expected=f"corruptions from severity 1 on, and '{CLEAN_CELL}' at severity 0 only",
            )
        with_clean = bool(is_clean.any())
        names = canonical(name for name in corruptions if name != CLEAN_CELL)
        levels = np.unique(severity if not with_clean else severity[~is_clean])
        cells = [(name, int(level)) for name in names for level in levels] + [(CLEAN_CELL, 0)] * with_clean
        first = {name: place * len(levels) for place, name in enumerate(names)}
        starts = np.array([first.get(name, len(names) * len(levels)) for name in corruptions])
        place = np.where(is_clean, 0, np.searchsorted(levels, severity))
        at = owner * len(cells) + starts[corruption] + place
        count = np.bincount(at, minlength=len(samples) * len(cells)).reshape(-1, len(cells))
        _require_once(count, cells)
        wrong = np.empty(count.shape, dtype=np.bool_)
        wrong.ravel()[at] = ~correct
        grid = wrong[:, : len(names) * len(levels)].reshape(len(samples), len(names), len(levels))
        clean = wrong[:, -1] if with_clean else None
        return cls(samples, names, tuple(levels.tolist()), grid, clean)

    def table(self, name: str) -> ErrorTable:
        """Return the errors by cell of this model, called `name`."""
        cells = {cell: float(wrong.mean()) for cell, wrong in self._columns().items()}
        return ErrorTable(name, cells, None if self.clean_wrong is None else float(self.clean_wrong.mean()))

    def top1(self) -> dict[Cell, Estimate]:
        """Top-1 accuracy by cell with its interval and n; the clean cell first where there is one."""
        clean = {} if self.clean_wrong is None else {(CLEAN_CELL, 0): self.clean_wrong}
        return {cell: proportion(int((~w).sum()), len(w)) for cell, w in (clean | self._columns()).items()}

    def _columns(self) -> dict[Cell, NDArray[np.bool_]]:
        cells = itertools.product(enumerate(self.corruptions), enumerate(self.severities))
        return {(corruption, severity): self.wrong[:, c, s] for (c, corruption), (s, severity) in cells}


def _require_once(count: NDArray[np.int64], cells: Sequence[Cell]) -> None:
    """Refuse cells that do not hold each image exactly once; `count` has shape (images, cells)."""
    problems = []
    for column, (name, severity) in enumerate(cells):
        present, repeated = int((count[:, column] > 0).sum()), int((count[:, column] > 1).sum())
        if present < len(count):
            problems.append(f"{name} at severity {severity} holds {present} of {len(count)} images")
        if repeated:
            problems.append(f"{name} at severity {severity} holds {repeated} images more than once")
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise BadInputError(f"{'; '.join(problems[:5])}{more}", expected="every image once in every cell")
