"""Corruptions stored in folders, as `CORRUPTION/SEVERITY/WNID/*`: files of a model's input size, never resized.

The corruptions may stand in folders `noise`, `blur`, `weather`, `digital` and `extra`, as the released archives have
them. A folder `clean` beside them holds the unchanged images: resized and cropped as the model wants, unless every one
has its input's size already (those of which corrupted pictures were made without resizing must not be enlarged and
cropped either).
"""

from pathlib import Path

from robustbench_kpca.data.cells import CLEAN, CellSamples
from robustbench_kpca.data.io.folder import ImageFiles, require_size
from robustbench_kpca.data.io.manifest import read_settings, require_finished
from robustbench_kpca.data.io.place import stored_folder
from robustbench_kpca.data.io.reading import image_size, sub_folders, unreadable
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.sets._imagenet_files import read_classes, require_validation
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.protocols.corruption_names import SEVERITIES

GROUPS = ("noise", "blur", "weather", "digital", "extra")
SPLITS = ("val", "test")  # one and the same: the images are of ImageNet's validation set
CLEAN_FOLDER = "clean"
VALIDATION_IMAGES = 50_000


class CellFolders(CellSamples):
    """Stored corruptions of ImageNet validation images; labels are ImageNet-1K indices.

    Args:
        request: what is asked; the only split is `val`, and `test` means it too.
        name: of the set.
        known: its corruptions, in the order published; a folder may hold fewer.

    Raises:
        BadInputError: another split; no such folder; sub-folders that are no corruptions of this set, or none at all;
            severities that are not 1 to 5, or not the same for every corruption; folders that are no ImageNet class;
            cells that hold different images; pictures of another size than the view's; a folder of `rbk corrupt` that
            is not finished.

    """

    def __init__(self, request: Request, name: str, known: tuple[str, ...]) -> None:
        root, view = stored_folder(name, request.folder), request.view
        self.root, self.view = root, view
        request.split_of(name, SPLITS)
        require_finished(root)
        self.folders = _corruption_folders(root, name, known)
        self.corruptions = tuple(corruption for corruption in known if corruption in self.folders)
        self.severities = _severities(self.folders, self.corruptions)
        places = [(c, s) for c in self.corruptions for s in self.severities]
        files, labels = read_classes(self._folder(*places[0]), name)
        require_validation(files, labels, self._folder(*places[0]), name)
        for place in places[1:]:
            other, _ = read_classes(self._folder(*place), name)
            _require_same(files, other, self._folder(*places[0]), self._folder(*place))
        bad = self._unreadable(places, files) if request.bad_images == "skip" else set()
        kept = [i for i in range(len(files)) if i not in bad]
        self.files = [files[i] for i in kept]
        self.made = _making(root)
        super().__init__(f"{name}-made" if self.made else name, "val", self.files, [labels[i] for i in kept], 1000)
        self.skipped = tuple(files[i] for i in sorted(bad))
        self.expected = VALIDATION_IMAGES
        self.clean = self._clean_files(files, kept, name)
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

    def _unreadable(self, places: list[tuple[str, int]], files: list[str]) -> set[int]:
        """Find what cannot be read in one cell at least."""
        cells = [self._folder(*place) for place in places]
        cells += [self.root / CLEAN_FOLDER] if (self.root / CLEAN_FOLDER).is_dir() else []
        return {i for folder in cells for i in unreadable([folder / _beside(folder, file) for file in files])}

    def _clean_files(self, files: list[str], kept: list[int], name: str) -> list[str] | None:
        folder = self.root / CLEAN_FOLDER
        if not folder.is_dir():
            return None
        found, _ = read_classes(folder, name)
        stems, wanted = ([file.rpartition(".")[0] for file in names] for names in (found, files))
        _require_same(wanted, stems, self.root, folder)
        return [found[i] for i in kept]


def _making(root: Path) -> tuple[str, str, str] | None:
    """Return how `rbk corrupt` made the pictures, or None if it did not."""
    settings = read_settings(root)
    if settings is None:
        return None
    storage = "jpeg-q85" if settings.get("format") == "jpeg85" else "none"
    return str(settings.get("profile")), storage, "original" if settings.get("frost") else "generated"


def _beside(folder: Path, file: str) -> str:
    """Return a file as it is called in `folder`, where its suffix may be another."""
    if (folder / file).exists():
        return file
    same = (folder / file).parent.glob(f"{Path(file).stem}.*")
    return next((path.relative_to(folder).as_posix() for path in same), file)


def _corruption_folders(root: Path, name: str, known: tuple[str, ...]) -> dict[str, Path]:
    top = {folder: root / folder for folder in sub_folders(root) if folder != CLEAN_FOLDER}
    for group in GROUPS:
        if group in top:
            inner = top.pop(group)
            top |= {folder: inner / folder for folder in sub_folders(inner)}
    foreign = sorted(set(top) - set(known))
    if foreign or not top:
        met = f"folder '{foreign[0]}', which is no corruption of it" if foreign else "no folders of corruptions"
        raise BadInputError(f"{root} is not {name}: it has {met}", expected=f"folders such as {known[0]}/1/n01440764")
    return top


def _severities(folders: dict[str, Path], corruptions: tuple[str, ...]) -> tuple[int, ...]:
    first: list[str] = []
    for corruption in corruptions:
        found = sub_folders(folders[corruption])
        odd = sorted(set(found) - set(map(str, SEVERITIES)))
        if odd or not found:
            met = f"folder '{odd[0]}'" if odd else "no folders"
            raise BadInputError(f"{folders[corruption]} holds {met}", expected="folders 1 to 5, its severities")
        first = first or found
        if found != first:
            raise BadInputError(
                f"{corruption} has the severities {', '.join(found)}, {corruptions[0]} has {', '.join(first)}",
                expected="the same for every corruption",
            )
    return tuple(map(int, first))


def _require_same(first: list[str], other: list[str], here: Path, there: Path) -> None:
    if first == other:
        return
    only_here, only_there = sorted(set(first) - set(other)), sorted(set(other) - set(first))
    where, name = (here, only_here[0]) if only_here else (there, only_there[0] if only_there else "?")
    raise BadInputError(
        f"{there} holds other images than {here}: '{name}' is in {where} only",
        expected="the same images in every cell",
        fix="copy the set again, or remove that file",
    )
