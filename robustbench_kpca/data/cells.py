"""Stored corruptions: every cell, that is (corruption, severity), has the same images in the same order."""

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar, cast

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.base import Part
from robustbench_kpca.data.samples import Image, Samples
from robustbench_kpca.protocols.scenario import CLEAN_CELL

CLEAN = (CLEAN_CELL, 0)
"""The cell of clean images."""
Self = TypeVar("Self", bound="CellSamples")


class CellSamples(Samples):
    """Images that are stored under every corruption at every severity.

    Indexing returns the clean images, if those are stored too; the digest covers every cell.

    Attributes:
        corruptions: the stored corruptions, in the published order.
        severities: the severities of every corruption, ascending.
    """

    corruptions: tuple[str, ...]
    severities: tuple[int, ...]

    def cell(self, corruption: str, severity: int) -> Samples:
        """Return the images of one cell; ids and labels are equal in all cells. (`none`, 0) is the clean cell.

        Raises:
            BadInputError: the cell does not exist, or its images differ from those of the other cells.
        """
        place = (corruption, severity)
        is_corrupted = corruption in self.corruptions and severity in self.severities
        if not is_corrupted and not (place == CLEAN and self.has_clean()):
            raise BadInputError(
                f"data '{self.name}' has no cell {corruption} at severity {severity}",
                fix=f"known: {', '.join(self.corruptions)} at {', '.join(map(str, self.severities))}"
                + (" and the clean images" if self.has_clean() else "; no clean images (folder clean)"),
            )
        cells: dict[tuple[str, int], Samples] = self.__dict__.setdefault("_cells", {})
        if place not in cells:
            cells[place] = self._make(corruption, severity)
        return cells[place]

    def __getstate__(self) -> dict[str, object]:
        """Return what a worker is sent: not the cells that were made, each of which lists all files again."""
        return {name: value for name, value in self.__dict__.items() if name != "_cells"}

    @property
    def places(self) -> list[tuple[str, int]]:
        """All cells; the clean one, if it is stored, is the first."""
        clean = [CLEAN] if self.has_clean() else []
        return clean + [(name, severity) for name in self.corruptions for severity in self.severities]

    @abstractmethod
    def has_clean(self) -> bool:
        """Tell whether the clean images are stored too."""

    @abstractmethod
    def _make(self, corruption: str, severity: int) -> Samples:
        """Return a cell that exists."""

    def image(self, index: int) -> Image:
        """Return the clean image number `index`."""
        return self.cell(*CLEAN).image(index)

    def size(self, index: int) -> tuple[int, int]:
        """Height and width of an image in pixels, the same in every cell."""
        return self.cell(*self.places[0]).size(index)

    def fingerprint(self, index: int) -> str:
        """Hash of the fingerprints of the image in all cells."""
        prints = [
            f"{name}/{severity}: {self.cell(name, severity).fingerprint(index)}" for name, severity in self.places
        ]
        return hashlib.sha256("\n".join(prints).encode()).hexdigest()

    def take(self: Self, indices: Sequence[int]) -> Self:
        """Return the samples at `indices` of every cell, in that order."""
        return cast("Self", _CellsPart(self, indices))


class _CellsPart(Part, CellSamples):
    whole: CellSamples

    def __init__(self, whole: CellSamples, indices: Sequence[int]) -> None:
        super().__init__(whole, indices)
        self.corruptions, self.severities = whole.corruptions, whole.severities

    def has_clean(self) -> bool:
        return self.whole.has_clean()

    def _make(self, corruption: str, severity: int) -> Samples:
        return self.whole.cell(corruption, severity).take(self.indices)
