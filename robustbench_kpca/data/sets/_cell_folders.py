"""Read stored corruptions from folders `CORRUPTION/SEVERITY/WNID/*`; files have the model's input size, not resized.

The corruption folders can be inside folders `noise`, `blur`, `weather`, `digital` and `extra`, as in the released
archives. An optional folder `clean` contains the clean images. They are resized and cropped for the model, unless all
of them already have its input size.
"""

import os
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.cells import CLEAN, CellSamples
from robustbench_kpca.data.io.folder import ImageFiles, require_size
from robustbench_kpca.data.io.place import stored_folder
from robustbench_kpca.data.io.reading import image_size, left_out, sub_folders
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.sets._imagenet_files import read_classes, require_validation
from robustbench_kpca.protocols.corruption_names import SEVERITIES

GROUPS = ("noise", "blur", "weather", "digital", "extra")
SPLITS = ("val", "test")  # synonyms: the images come from ImageNet's validation set
CLEAN_FOLDER = "clean"
VALIDATION_IMAGES = 50_000


class CellFolders(CellSamples):
    """Stored corruptions of ImageNet validation images; labels are ImageNet-1K indices.

    Args:
        names: its corruptions, in the published order; a folder can contain fewer.

    Raises:
        BadInputError: another split; no such folder; no corruption folders, or unknown ones; severities outside 1 to 5,
            or different for two corruptions; folders that are not ImageNet classes; cells with different images; images
            whose size differs from the view's.
    """

    def __init__(self, request: Request, name: str, names: tuple[str, ...]) -> None:
        root, view = stored_folder(name, request.folder), request.view
        self.root, self.view = root, view
        request.split_of(name, SPLITS)
        self.folders = _corruption_folders(root, name, names)
        self.corruptions = tuple(corruption for corruption in names if corruption in self.folders)
        self.severities = _severities(self.folders, self.corruptions)
        places = [(c, s) for c in self.corruptions for s in self.severities]
        cells = [self._folder(*place) for place in places]
        files, labels, notes = read_classes(cells[0], name)
        require_validation(files, labels, cells[0], name)
        first = _names_in(cells[0])
        alike = [cell for cell in cells if first and _names_in(cell) == first]
        for cell in (cell for cell in cells if cell not in alike):
            _require_same(files, read_classes(cell, name).files, cells[0], cell)
        self.files = files
        super().__init__(name, "val", files, labels, 1000)
        self.expected, self.notes = VALIDATION_IMAGES, left_out(root, but=() if notes else alike)
        self.clean = self._clean_files(files, name)
        self.clean_stored = all(
            image_size(root / CLEAN_FOLDER / file) == (view.size, view.size) for file in self.clean or ()
        )
        for place in places:
            path = self._folder(*place) / self.files[0]
            require_size(path, image_size(path), view)

    def has_clean(self) -> bool:
        """Tell whether there is a folder `clean`."""
        return self.clean is not None

    def _make(self, corruption: str, severity: int) -> ImageFiles:
        clean = (corruption, severity) == CLEAN
        return ImageFiles(
            self._folder(corruption, severity), self.clean or [] if clean else self.files, self.labels, self.classes,
            name=self.name, split=self.split, view=self.view, ids=self.ids,
            stored=self.clean_stored if clean else True,
        )  # fmt: skip

    def _folder(self, corruption: str, severity: int) -> Path:
        if (corruption, severity) == CLEAN:
            return self.root / CLEAN_FOLDER
        return self.folders[corruption] / str(severity)

    def _clean_files(self, files: list[str], name: str) -> list[str] | None:
        folder = self.root / CLEAN_FOLDER
        if not folder.is_dir():
            return None
        clean = read_classes(folder, name).files
        stems, wanted = ([file.rpartition(".")[0] for file in names] for names in (clean, files))
        _require_same(wanted, stems, self.root, folder)
        return clean


def _corruption_folders(root: Path, name: str, names: tuple[str, ...]) -> dict[str, Path]:
    top = {folder: root / folder for folder in sub_folders(root) if folder != CLEAN_FOLDER}
    for group in GROUPS:
        if group in top:
            inner = top.pop(group)
            top |= {folder: inner / folder for folder in sub_folders(inner)}
    foreign = sorted(set(top) - set(names))
    if foreign or not top:
        what = f"folder '{foreign[0]}', which is not one of its corruptions" if foreign else "no corruption folders"
        raise BadInputError(f"{root} is not {name}: it has {what}", expected=f"folders such as {names[0]}/1/n01440764")
    return top


def _severities(folders: dict[str, Path], corruptions: tuple[str, ...]) -> tuple[int, ...]:
    first: list[str] = []
    for corruption in corruptions:
        severities = sub_folders(folders[corruption])
        unknown = sorted(set(severities) - set(map(str, SEVERITIES)))
        if unknown or not severities:
            content = f"folder '{unknown[0]}'" if unknown else "no folders"
            raise BadInputError(f"{folders[corruption]} contains {content}", expected="folders 1 to 5, the severities")
        first = first or severities
        if severities != first:
            raise BadInputError(
                f"{corruption} has the severities {', '.join(severities)}, {corruptions[0]} has {', '.join(first)}",
                expected="the same for every corruption",
            )
    return tuple(map(int, first))


def _names_in(cell: Path) -> dict[str, set[str]]:
    """Return the names in every class folder of a cell; nothing where not all that the cell contains are folders.

    Equal names are equal images. To compare them takes a seventh of the time that it takes to list the images.
    """
    try:  # `Path.iterdir` makes a path of each of 3.75 million names
        return {folder: set(os.listdir(f"{cell}/{folder}")) for folder in os.listdir(cell)}  # noqa: PTH208
    except OSError:
        return {}


def _require_same(first: list[str], other: list[str], first_folder: Path, other_folder: Path) -> None:
    if first == other:
        return
    only_here, only_there = sorted(set(first) - set(other)), sorted(set(other) - set(first))
    where, name = (first_folder, only_here[0]) if only_here else (other_folder, only_there[0] if only_there else "?")
    raise BadInputError(
        f"{other_folder} contains other images than {first_folder}: '{name}' is in {where} only",
        expected="the same images in every cell",
        fix="copy the set again, or remove that file",
    )
