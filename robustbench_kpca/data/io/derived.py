"""Make a folder of images from another folder; the bytes do not depend on the number of workers. Resumable."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Generator, set_num_threads
from torch.utils.data import DataLoader, Dataset

from robustbench_kpca._core.errors import BadInputError, BenchmarkError, EvaluationError, reason_of
from robustbench_kpca._core.files import as_csv, read_file, replace_file, sha256
from robustbench_kpca._core.progress import Progress
from robustbench_kpca.data.io import manifest
from robustbench_kpca.data.io.reading import image_files, left_out, no_images, read_rgb
from robustbench_kpca.data.request import BadImages, View

Pixels = NDArray[np.uint8]
Make = Callable[[Pixels, str, str], bytes]
"""Makes the bytes of one file from (pixels, folder, relative path of the source, which names the random stream)."""


@dataclass(frozen=True)
class Derivation:
    """What to make from every image of `source`: one file in each of `folders`, below `target`.

    Attributes:
        folders: relative paths; the relative path of the source is appended to each.
        suffix: suffix of the output files, such as `.JPEG`.
        make: makes the bytes of a file; must be picklable.
        view: how images are resized and cropped first; None: not at all.
        bad_images: `fail` at, or `skip`, unreadable sources.
    """

    source: Path
    target: Path
    folders: tuple[str, ...]
    suffix: str
    make: Make
    view: View | None
    bad_images: BadImages

    def outputs(self, file: str) -> Iterator[tuple[str, str]]:
        """Yield (folder, relative path in the target) of every file that is made from `file`."""
        stem = file[: -len(Path(file).suffix)]
        return ((folder, f"{folder}/{stem}{self.suffix}") for folder in self.folders)


@dataclass(frozen=True)
class Result:
    """Counts: sources in total, files made now, files kept from an earlier run, and the sources that were skipped.

    `left_out` says which other files of the source are no pictures that are read.
    """

    sources: int
    made: int
    kept: int
    skipped: tuple[str, ...]
    left_out: tuple[str, ...]


def sources_of(source: Path, target: Path) -> list[str]:
    """Return the relative paths of the images of `source`.

    Raises:
        BadInputError: no such folder, no images, a target inside the source, or two images with the same output file.
    """
    if not source.is_dir():
        raise BadInputError(f"there is no folder {source}", fix="give the folder with the images")
    if source.resolve() in (target.resolve(), *target.resolve().parents):
        raise BadInputError(f"{target} is inside {source}", fix="give a folder outside it")
    files = image_files(source)
    if not files:
        raise BadInputError(f"{source} contains {no_images(source)}", fix="give the folder with the images")
    odd = next((file for file in files if not file.isprintable()), None)
    if odd is not None:
        raise BadInputError(f"file name {odd!r} in {source}", expected="names in UTF-8 without control characters")
    by_stem: dict[str, str] = {}
    for file in files:
        stem = file.rpartition(".")[0]
        if stem in by_stem:
            raise BadInputError(f"'{by_stem[stem]}' and '{file}' would have the same output file", fix="rename one")
        by_stem[stem] = file
    return files


def open_target(target: Path, settings: dict[str, Any], growing: str) -> dict[str, Any]:
    """Return the settings to write to `target`: equal to its old ones, except for new items in the list `growing`.

    Raises:
        BadInputError: the target contains other files, or was made with other settings.
    """
    old = manifest.read_settings(target)
    if old is None:
        if target.exists() and (not target.is_dir() or any(not path.name.startswith(".") for path in target.iterdir())):
            raise BadInputError(f"{target} already contains other files", fix="give a new or empty folder")
        return settings
    for key, value in settings.items():
        if key != growing and old.get(key) != value:
            old_value, new_value = _difference(old.get(key), value)
            raise BadInputError(
                f"{target} was made with other settings: {key} was {old_value} and is now {new_value}",
                fix="give another folder",
            )
    before: list[Any] = old.get(growing, [])
    return settings | {growing: before + [item for item in settings[growing] if item not in before]}


def derive(
    plan: Derivation, files: Sequence[str], settings: dict[str, Any], workers: int, progress: Progress | None = None
) -> Result:
    """Make every file that does not exist yet with the digest in the manifest.

    `manifest.csv` is extended after every source, so finished files are not made again after an interruption.

    Raises:
        BadInputError: an unreadable source; existing files whose source is missing.
        EvaluationError: the disk is full.
    """
    finished = manifest.read_table(plan.target)
    _require_sources(plan, files, finished)
    manifest.write_settings(plan.target, settings | {"finished": False})
    manifest.write_table(plan.target, finished.values())
    loader = DataLoader(
        _Work(plan, files, finished),
        batch_size=None,
        num_workers=workers,
        worker_init_fn=_quiet_worker,
        generator=Generator(),  # without it the loader would use the global generator
    )
    made_files, kept_files, skipped = 0, 0, list[str]()
    with (plan.target / manifest.TABLE).open("a", encoding="utf-8", newline="") as table:
        for done, outcome in enumerate(loader, 1):
            if isinstance(outcome, BenchmarkError):
                raise outcome
            if isinstance(outcome, str):
                skipped.append(outcome)
            else:
                table.write(as_csv(outcome.made))
                table.flush()
                finished |= {row.file: row for row in outcome.made}
                made_files, kept_files = made_files + len(outcome.made), kept_files + outcome.kept
            if progress is not None:
                progress(done, len(files))
    if len(skipped) == len(files):
        raise BadInputError(f"none of the {len(files)} images of {plan.source} can be read", fix="copy them again")
    manifest.write_table(plan.target, finished.values())
    manifest.write_settings(plan.target, settings | {"skipped": sorted(skipped), "finished": True})
    return Result(len(files), made_files, kept_files, tuple(sorted(skipped)), left_out(plan.source))


@dataclass(frozen=True)
class _Outcome:
    made: list[manifest.Made]
    kept: int


class _Work(Dataset[_Outcome | str | BenchmarkError]):
    """One item per source, so that each source is decoded once for all its output files."""

    def __init__(self, plan: Derivation, files: Sequence[str], finished: Mapping[str, manifest.Made]) -> None:
        self.plan, self.files, self.known = plan, files, finished

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, position: int) -> _Outcome | str | BenchmarkError:
        try:
            return self._item(self.files[position])
        except BenchmarkError as error:  # an exception from a worker would contain the worker's whole traceback
            return error

    def _item(self, file: str) -> _Outcome | str:
        source = self.plan.source / file
        try:
            digest = sha256(read_file(source, "image"))
        except BadInputError:
            if self.plan.bad_images == "skip":
                return file
            raise
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
        files = []
        for folder, path in todo:
            data = self.plan.make(pixels, folder, file)
            _place(self.plan.target / path, data)
            files.append(manifest.Made(path, sha256(data), digest))
        return _Outcome(files, len(self.plan.folders) - len(files))

    def _is_made(self, path: str, source: str) -> bool:
        row = self.known.get(path)
        if row is None or row.source_sha256 != source:
            return False
        try:
            return sha256((self.plan.target / path).read_bytes()) == row.sha256
        except OSError:
            return False


def _require_sources(plan: Derivation, files: Sequence[str], finished: Mapping[str, manifest.Made]) -> None:
    planned = {path for file in files for _, path in plan.outputs(file)}
    tops = {f"{folder}/" for folder in plan.folders}
    gone = [path for path in finished if path not in planned and "/".join(path.split("/")[:2]) + "/" in tops]
    if gone:
        raise BadInputError(
            f"{plan.target} contains {len(gone)} files whose source is missing, such as '{gone[0]}'",
            fix="restore the source, or give another folder",
        )


def _difference(old: Any, new: Any) -> tuple[Any, Any]:
    """Return the first entries that differ, if both values are mappings; else the values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            if old.get(key) != new.get(key):
                return f"{key} {old.get(key)}", f"{key} {new.get(key)}"
    return old, new


def _place(path: Path, data: bytes) -> None:
    """Write a file without flushing it to disk: the manifest tells whether it is complete."""
    try:
        replace_file(path, data, durable=False)
    except OSError as error:
        raise EvaluationError(
            f"cannot write {path} ({reason_of(error)})", fix="free disk space or check permissions, and run again"
        ) from None


def _quiet_worker(_: int) -> None:
    set_num_threads(1)
