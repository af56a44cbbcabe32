"""Make a folder of images from another: the same bytes for any number of workers, resumable at any file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Generator, set_num_threads
from torch.utils.data import DataLoader, Dataset

from robustbench_kpca.data.io.manifest import (
    TABLE,
    Made,
    as_lines,
    read_settings,
    read_table,
    write_settings,
    write_table,
)
from robustbench_kpca.data.io.reading import image_files, read_rgb
from robustbench_kpca.data.request import BadImages, View
from robustbench_kpca.errors import BadInputError, BenchmarkError, EvaluationError
from robustbench_kpca.files import replace_file, sha256

Pixels = NDArray[np.uint8]
Make = Callable[[Pixels, str, str], bytes]
"""Makes one file: (pixels, folder, relative path of the source, which names the random stream) to its bytes."""
Progress = Callable[[int, int], None]
"""Called with (sources done, sources in all)."""


@dataclass(frozen=True)
class Derivation:
    """What is made of every image of `source`: one file in each of `folders`, below `target`.

    Attributes:
        source: folder with images, at any depth.
        target: folder to be written.
        folders: relative paths; the source's own relative path goes below each.
        suffix: of the made files, such as `.JPEG`.
        make: makes a file; must be picklable.
        view: how images are resized and cropped before; None leaves them as they are.
        bad_images: `fail`, or `skip` sources that cannot be read.

    """

    source: Path
    target: Path
    folders: tuple[str, ...]
    suffix: str
    make: Make
    view: View | None
    bad_images: BadImages

    def outputs(self, file: str) -> Iterator[tuple[str, str]]:
        """Give (folder, relative path in the target) of every file that is made of `file`."""
        stem = file[: -len(Path(file).suffix)]
        return ((folder, f"{folder}/{stem}{self.suffix}") for folder in self.folders)


@dataclass(frozen=True)
class Result:
    """What was done: sources seen, files made now, files kept from before, and sources left out."""

    sources: int
    made: int
    kept: int
    skipped: tuple[str, ...]


def sources_of(source: Path, target: Path) -> list[str]:
    """List the images of `source`.

    Raises:
        BadInputError: no such folder, no images, a target inside the source, two images that would become one file.

    """
    if not source.is_dir():
        raise BadInputError(f"there is no folder {source}", fix="give the folder that holds the images")
    if source.resolve() in (target.resolve(), *target.resolve().parents):
        raise BadInputError(f"{target} lies inside {source}", fix="give a folder outside it")
    files = image_files(source)
    if not files:
        raise BadInputError(f"{source} holds no images", fix="give the folder that holds the images")
    odd = next((file for file in files if not file.isprintable()), None)
    if odd is not None:
        raise BadInputError(f"file name {odd!r} in {source}", expected="names in UTF-8 without control characters")
    seen: dict[str, str] = {}
    for file in files:
        stem = file.rpartition(".")[0]
        if stem in seen:
            raise BadInputError(f"'{seen[stem]}' and '{file}' would become one file", fix="rename one")
        seen[stem] = file
    return files


def open_target(target: Path, settings: dict[str, Any], growing: str) -> dict[str, Any]:
    """Return the settings to be written to `target`: those it has, to which new items of the list `growing` may come.

    Raises:
        BadInputError: the target holds something else, or was made with other settings.

    """
    found = read_settings(target)
    if found is None:
        if target.exists() and (not target.is_dir() or any(not path.name.startswith(".") for path in target.iterdir())):
            raise BadInputError(f"{target} holds something else already", fix="give a new or empty folder")
        return settings
    for key, value in settings.items():
        if key != growing and found.get(key) != value:
            met, asked = _difference(found.get(key), value)
            raise BadInputError(
                f"{target} was made with other settings: {key} was {met} and is {asked}", fix="give another folder"
            )
    before: list[Any] = found.get(growing, [])
    return settings | {growing: before + [item for item in settings[growing] if item not in before]}


def derive(
    plan: Derivation, files: Sequence[str], settings: dict[str, Any], workers: int, progress: Progress | None = None
) -> Result:
    """Make every file that is not there already, whole and as the manifest says.

    `manifest.csv` grows while files are made, so nothing that was finished is made again after an interruption.

    Raises:
        BadInputError: a source that cannot be read; made files whose source is gone.
        EvaluationError: the disk is full.

    """
    known = read_table(plan.target)
    _require_sources(plan, files, known)
    write_settings(plan.target, settings | {"finished": False})
    write_table(plan.target, known.values())
    loader = DataLoader(
        _Work(plan, files, known), batch_size=None, num_workers=workers, worker_init_fn=_quiet_worker,
        generator=Generator(),  # else the loader draws from the global one
    )  # fmt: skip
    made, kept, skipped = 0, 0, list[str]()
    with (plan.target / TABLE).open("a", encoding="utf-8", newline="") as table:
        for done, outcome in enumerate(loader, 1):
            if isinstance(outcome, BenchmarkError):
                raise outcome
            if isinstance(outcome, str):
                skipped.append(outcome)
            else:
                table.write(as_lines(outcome.made))
                table.flush()
                known |= {row.file: row for row in outcome.made}
                made, kept = made + len(outcome.made), kept + outcome.kept
            if progress is not None:
                progress(done, len(files))
    if len(skipped) == len(files):
        raise BadInputError(f"none of the {len(files)} images of {plan.source} can be read", fix="copy them again")
    write_table(plan.target, known.values())
    write_settings(plan.target, settings | {"skipped": sorted(skipped), "finished": True})
    return Result(len(files), made, kept, tuple(sorted(skipped)))


@dataclass(frozen=True)
class _Outcome:
    made: list[Made]
    kept: int


class _Work(Dataset[_Outcome | str | BenchmarkError]):
    """One item a source, so that it is decoded once for everything that is made of it."""

    def __init__(self, plan: Derivation, files: Sequence[str], known: Mapping[str, Made]) -> None:
        self.plan, self.files, self.known = plan, files, known

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, position: int) -> _Outcome | str | BenchmarkError:
        try:
            return self._item(self.files[position])
        except BenchmarkError as error:  # raised in a worker it would arrive with the worker's whole trace
            return error

    def _item(self, file: str) -> _Outcome | str:
        source = self.plan.source / file
        try:
            digest = sha256(source.read_bytes())
        except OSError as error:
            raise BadInputError(f"image {source} cannot be read ({error})", fix="replace or remove it") from None
        todo = [(folder, path) for folder, path in self.plan.outputs(file) if not self._is_made(path, digest)]
        if not todo:
            return _Outcome([], len(self.plan.folders))
        try:
            image = read_rgb(source)
            pixels = np.array(image if self.plan.view is None else self.plan.view.apply(image))
        except BadInputError:
            if self.plan.bad_images == "skip":
                return file
            raise
        made = []
        for folder, path in todo:
            data = self.plan.make(pixels, folder, file)
            _place(self.plan.target / path, data)
            made.append(Made(path, sha256(data), digest))
        return _Outcome(made, len(self.plan.folders) - len(made))

    def _is_made(self, path: str, source: str) -> bool:
        row = self.known.get(path)
        if row is None or row.source_sha256 != source:
            return False
        try:
            return sha256((self.plan.target / path).read_bytes()) == row.sha256
        except OSError:
            return False


def _require_sources(plan: Derivation, files: Sequence[str], known: Mapping[str, Made]) -> None:
    planned = {path for file in files for _, path in plan.outputs(file)}
    tops = {f"{folder}/" for folder in plan.folders}
    gone = [path for path in known if path not in planned and "/".join(path.split("/")[:2]) + "/" in tops]
    if gone:
        raise BadInputError(
            f"{plan.target} holds {len(gone)} files whose source is gone, such as '{gone[0]}'",
            fix="restore the source, or give another folder",
        )


def _difference(met: Any, asked: Any) -> tuple[Any, Any]:
    """Return the first entry that differs, of two mappings, or the values themselves."""
    if isinstance(met, dict) and isinstance(asked, dict):
        for key in {**met, **asked}:
            if met.get(key) != asked.get(key):
                return f"{key} {met.get(key)}", f"{key} {asked.get(key)}"
    return met, asked


def _place(path: Path, data: bytes) -> None:
    """Write a file; not flushed to disk, because the manifest tells whether it is whole."""
    try:
        replace_file(path, data, durable=False)
    except OSError as error:
        raise EvaluationError(
            f"cannot write {path} ({error.strerror})", fix="make room, or check permissions, and run again"
        ) from None


def _quiet_worker(_: int) -> None:
    set_num_threads(1)
