"""Stored corruptions are a grid: the same images, in the same order, once for every corruption and severity."""

import hashlib
from abc import abstractmethod
from collections.abc import Sequence

from robustbench_kpca.data.samples import Image, Samples
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.protocols.scenario import CLEAN_CELL

BAR = (
    "blue_noise_sample", "brownish_noise", "caustic_refraction", "checkerboard_cutout", "cocentric_sine_waves",
    "inverse_sparkles", "perlin_noise", "plasma_noise", "single_frequency_greyscale", "sparkles",
)  # fmt: skip
"""The ten of ImageNet-C-bar (Mintun et al., 2021, arXiv:2102.11273), spelled as its folders are."""
CLEAN = (CLEAN_CELL, 0)
"""The cell that is no corruption."""


class CellSamples(Samples):
    """Images of which every corruption at every severity is stored.

    As a data set of its own it is the unchanged images, where those are stored too; its digest covers every cell.

    Attributes:
        corruptions: those that are there, in the order published.
        severities: those that every corruption has, ascending.
        made: of pictures that `rbk corrupt` made, their profile, storage and frost as a protocol spells them; None for
            published ones.

    """

    made: tuple[str, str, str] | None = None

    corruptions: tuple[str, ...]
    severities: tuple[int, ...]

    def cell(self, corruption: str, severity: int) -> Samples:
        """Return the images of one cell: the same ids and labels for each. `none` at severity 0 are the unchanged ones.

        Raises:
            BadInputError: the cell is not there, or its images differ from those of the other cells.

        """
        place = (corruption, severity)
        known = corruption in self.corruptions and severity in self.severities
        if not known and not (place == CLEAN and self.has_clean()):
            raise BadInputError(
                f"data '{self.name}' has no cell {corruption} at severity {severity}",
                fix=f"there are {', '.join(self.corruptions)} at {', '.join(map(str, self.severities))}"
                + (" and the unchanged images" if self.has_clean() else "; no unchanged images (folder clean)"),
            )
        made: dict[tuple[str, int], Samples] = self.__dict__.setdefault("_made", {})
        if place not in made:
            made[place] = self._make(corruption, severity)
        return made[place]

    @property
    def places(self) -> list[tuple[str, int]]:
        """Every cell there is."""
        clean = [CLEAN] if self.has_clean() else []
        return clean + [(name, severity) for name in self.corruptions for severity in self.severities]

    @abstractmethod
    def has_clean(self) -> bool:
        """Tell whether the unchanged images are stored too."""

    @abstractmethod
    def _make(self, corruption: str, severity: int) -> Samples:
        """Return a cell that is known to be there."""

    def image(self, index: int) -> Image:
        """Image number `index`, unchanged."""
        return self.cell(*CLEAN).image(index)

    def fingerprint(self, index: int) -> str:
        """Hash of the image's fingerprints in all cells."""
        prints = [
            f"{name}/{severity}: {self.cell(name, severity).fingerprint(index)}" for name, severity in self.places
        ]
        return hashlib.sha256("\n".join(prints).encode()).hexdigest()

    def take(self, indices: Sequence[int]) -> "CellSamples":
        """Keep the samples at `indices` of every cell, in that order."""
        return _SomeCells(self, indices)


class _SomeCells(CellSamples):
    def __init__(self, whole: CellSamples, indices: Sequence[int]) -> None:
        self.whole, self.indices = whole, list(indices)
        self.corruptions, self.severities = whole.corruptions, whole.severities
        ids, strata = [whole.ids[i] for i in indices], [whole.strata[i] for i in indices]
        super().__init__(whole.name, whole.split, ids, strata, whole.classes)
        self.skipped, self.made = whole.skipped, whole.made
        self.expected = whole.expected if len(self) == len(whole) else None

    def has_clean(self) -> bool:
        return self.whole.has_clean()

    def _make(self, corruption: str, severity: int) -> Samples:
        return self.whole.cell(corruption, severity).take(self.indices)
