"""Stored corruptions: the same images, in the same order, once for every corruption and severity (a cell)."""

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar, cast

from robustbench_kpca.data.base import Part
from robustbench_kpca.data.samples import Image, Samples
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.protocols.scenario import CLEAN_CELL

CLEAN = (CLEAN_CELL, 0)
"""The cell that is no corruption."""
Self = TypeVar("Self", bound="CellSamples")


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

    def size(self, index: int) -> tuple[int, int]:
        """Height and width of an image in pixels, the same in every cell."""
        return self.cell(*self.places[0]).size(index)

    def fingerprint(self, index: int) -> str:
        """Hash of the image's fingerprints in all cells."""
        prints = [
            f"{name}/{severity}: {self.cell(name, severity).fingerprint(index)}" for name, severity in self.places
        ]
        return hashlib.sha256("\n".join(prints).encode()).hexdigest()

    def take(self: Self, indices: Sequence[int]) -> Self:
        """Keep the samples at `indices` of every cell, in that order."""
        return cast("Self", _CellsPart(self, indices))


class _CellsPart(Part, CellSamples):
    whole: CellSamples

    def __init__(self, whole: CellSamples, indices: Sequence[int]) -> None:
        super().__init__(whole, indices)
        self.corruptions, self.severities, self.made = whole.corruptions, whole.severities, whole.made

    def has_clean(self) -> bool:
        return self.whole.has_clean()

    def _make(self, corruption: str, severity: int) -> Samples:
        return self.whole.cell(corruption, severity).take(self.indices)
