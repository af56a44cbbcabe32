"""Make a folder of images from another folder; the bytes do not depend on the number of workers. Resumable.

A file is written whole or not at all, and is made again where its source is newer. `manifest.json` has the settings.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Generator, set_num_threads
from torch.utils.data import DataLoader, Dataset

from robustbench_kpca._core.errors import BadInputError, BenchmarkError, EvaluationError, reason_of
from robustbench_kpca._core.files import replace_file, write_atomic
from robustbench_kpca._core.progress import Progress
from robustbench_kpca.data.io.reading import image_files, no_images, read_rgb
from robustbench_kpca.data.request import View

Pixels = NDArray[np.uint8]
Make = Callable[[Pixels, str, str], bytes]
"""Makes the bytes of one file from (pixels, folder, relative path of the source, which names the random stream)."""
SETTINGS = "manifest.json"


@dataclass(frozen=True)
class Derivation:
    """What to make from every image of `source`: one file in each of `folders`, below `target`.

    Attributes:
        folders: relative paths; the relative path of the source is appended to each.
        make: makes the bytes of a file; must be picklable.
        view: how images are resized and cropped first; None: not at all.
    """

    source: Path
    target: Path
    folders: tuple[str, ...]
    make: Make
    view: View | None

    def missing(self, file: str) -> Iterator[tuple[str, Path]]:
        """Yield (folder, path) of every file that is still to be made from `file`."""
        changed = (self.source / file).stat().st_mtime_ns
        for folder in self.folders:
            path = (self.target / folder / file).with_suffix(".JPEG")
            if not path.is_file() or path.stat().st_mtime_ns < changed:
                yield folder, path


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


def read_settings(folder: Path) -> dict[str, Any] | None:
    """Return what a folder of made images was made with, or None for other images."""
    path = folder / SETTINGS
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInputError(
            f"{path} cannot be read ({reason_of(error)})", fix="restore it, or make the folder again"
        ) from None
    if not isinstance(content, dict):
        raise BadInputError(f"{path} is not a manifest", fix="restore it, or make the folder again")
    return content


def require_target(target: Path, settings: dict[str, Any]) -> None:
    """Refuse a target that contains other files, or was made with other settings."""
    old = read_settings(target)
    if old is None:
        if target.exists() and (not target.is_dir() or any(not path.name.startswith(".") for path in target.iterdir())):
            raise BadInputError(f"{target} already contains other files", fix="give a new or empty folder")
        return
    for key, value in settings.items():
        if old.get(key) != value:
            raise BadInputError(
                f"{target} was made with other settings: {key} was {old.get(key)} and is now {value}",
                fix="give another folder",
            )


def derive(
    plan: Derivation, files: Sequence[str], settings: dict[str, Any], workers: int, progress: Progress | None = None
) -> int:
    """Make every file that does not exist yet, or whose source is newer; return their number.

    Raises:
        BadInputError: an unreadable source.
        EvaluationError: the disk is full.
    """
    _write_settings(plan.target, settings, finished=False)
    loader = DataLoader(
        _Work(plan, files),
        batch_size=None,
        num_workers=workers,
        worker_init_fn=_quiet_worker,
        generator=Generator(),  # without it the loader would use the global generator
    )
    count = 0
    for done, outcome in enumerate(loader, 1):
        if isinstance(outcome, BenchmarkError):
            raise outcome
        count += outcome
        if progress is not None:
            progress(done, len(files))
    _write_settings(plan.target, settings, finished=True)
    return count


def _write_settings(folder: Path, settings: dict[str, Any], *, finished: bool) -> None:
    content = settings | {"finished": finished}
    write_atomic(folder / SETTINGS, (json.dumps(content, indent=1) + "\n").encode())


class _Work(Dataset[int | BenchmarkError]):
    """One item per source, so that each source is decoded once for all its output files."""

    def __init__(self, plan: Derivation, files: Sequence[str]) -> None:
        self.plan, self.files = plan, files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, position: int) -> int | BenchmarkError:
        try:
            return self._make(self.files[position])
        except BenchmarkError as error:  # an exception from a worker would contain the worker's whole traceback
            return error

    def _make(self, file: str) -> int:
        missing = list(self.plan.missing(file))
        if missing:
            image = read_rgb(self.plan.source / file)
            pixels = np.array(image if self.plan.view is None else self.plan.view.apply(image))
            for folder, path in missing:
                _place(path, self.plan.make(pixels, folder, file))
        return len(missing)


def _place(path: Path, data: bytes) -> None:
    """Write a file without flushing it to disk."""
    try:
        replace_file(path, data, durable=False)
    except OSError as error:
        raise EvaluationError(
            f"cannot write {path} ({reason_of(error)})", fix="free disk space or check permissions, and run again"
        ) from None


def _quiet_worker(_: int) -> None:
    set_num_threads(1)
