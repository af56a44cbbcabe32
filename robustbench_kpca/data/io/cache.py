"""Decode every image of a set once, and read it from one file of plain pixels from then on."""

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import PIL
from numpy.typing import NDArray
from torch import Tensor

from robustbench_kpca.data.cells import CellSamples
from robustbench_kpca.data.io.lock import locked
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.errors import BadInputError, EvaluationError
from robustbench_kpca.files import unwritable

CHUNK = 256  # images between two marks of progress: 38 MB at 224 px
Progress = Callable[[int, int], None]
"""Called with (images done, images in all)."""


def cached(samples: Samples, folder: Path, progress: Progress | None = None) -> Samples:
    """Decode every image once into `folder`; return the same samples (ids, labels, digest), read from there.

    The file is an ordinary `.npy` of uint8 (images, height, width, 3), in the order of the sorted ids, named after the
    samples' digest and Pillow's version, on which decoded pixels depend. It appears under that name when it is whole;
    work that was interrupted goes on where it was, and a second process waits for the first.

    Raises:
        BadInputError: images of different sizes, not of 8 bits, unreadable, or stored corruptions; a folder that
            cannot be written.
        EvaluationError: the disk is full.

    """
    if isinstance(samples, CellSamples):
        raise BadInputError(
            f"a cache of '{samples.name}'", expected="no cache: stored corruptions are read as they are"
        )
    path = folder / f"{samples.digest()}-pillow-{PIL.__version__}.npy"
    try:
        if not path.is_file():
            with locked(folder / f".{path.stem}.lock", wait=True):
                if not path.is_file():
                    _Building(samples, path).run(progress)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise EvaluationError(f"cannot write {path} ({error.strerror})", fix="make room and run again") from None
        raise unwritable(folder, error) from None
    return CachedSamples(samples, path)


class CachedSamples(Samples):
    """Samples whose decoded images lie in one mapped file; ids, labels and digest are those of the originals."""

    def __init__(self, source: Samples, path: Path) -> None:
        super().__init__(source.name, source.split, source.ids, source.strata, source.classes)
        self.source, self.path = source, path
        self.skipped, self.expected, self.known_classes = source.skipped, source.expected, source.known_classes
        self.rows = _rows(source)
        self.map: NDArray[np.uint8] | None = None
        held, first = self._open(), np.asarray(source.image(0))
        if held.dtype != np.uint8 or held.shape != (len(self), *first.shape) or (self.image(0) != first).any():
            raise BadInputError(
                f"{path} holds {held.dtype} of shape {held.shape}",
                expected=f"the {len(self)} images of '{self.name}', decoded",
                fix="remove it",
            )

    def image(self, index: int) -> NDArray[np.uint8]:
        """Read one image."""
        return np.array(self._open()[self.rows[index]])

    def fingerprint(self, index: int) -> str:
        """As of the original."""
        return self.source.fingerprint(index)

    def _open(self) -> NDArray[np.uint8]:
        if self.map is None:
            try:
                self.map = np.load(self.path, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                raise BadInputError(f"{self.path} cannot be read ({error})", fix="remove it") from None
        return self.map

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"map": None}  # a pickled map would carry all of its images


class _Building:
    """An unfinished cache: a file of pixels under another name, and a journal of the rows that are safe on disk."""

    def __init__(self, samples: Samples, path: Path) -> None:
        self.samples, self.path = samples, path
        self.part, self.journal = path.with_suffix(".part"), path.with_suffix(".progress")
        self.index = sorted(range(len(samples)), key=samples.ids.__getitem__)  # of the sample in each row

    def run(self, progress: Progress | None) -> None:
        shape = _pixels(self.samples, 0).shape
        done = self._done() if self.part.is_file() else set()
        try:
            pixels = self._map((len(self.samples), *shape), fresh=not done)
            self._fill(pixels, done, progress)
        except BadInputError:
            self.part.unlink(missing_ok=True)
            self.journal.unlink(missing_ok=True)
            raise
        del pixels
        self.part.replace(self.path)
        self.journal.unlink(missing_ok=True)

    def _fill(self, pixels: NDArray[np.uint8], done: set[int], progress: Progress | None) -> None:
        total = len(self.samples)

        def decode(row: int) -> None:
            image = _pixels(self.samples, self.index[row])
            if image.shape != pixels.shape[1:]:
                raise BadInputError(
                    f"image '{self.samples.ids[self.index[row]]}' has another size than '{self.samples.ids[0]}'",
                    expected="one size in a cache",
                )
            pixels[row] = image

        with ThreadPoolExecutor() as pool, self.journal.open("a" if done else "w") as journal:
            for start in range(0, total, CHUNK):
                stop = min(start + CHUNK, total)
                todo = [row for row in range(start, stop) if row not in done]
                if todo:
                    list(pool.map(decode, todo))
                    self._safe(pixels)
                    journal.write(f"{start} {stop}\n")
                    journal.flush()
                    os.fsync(journal.fileno())
                if progress is not None:
                    progress(stop, total)

    def _map(self, shape: tuple[int, ...], *, fresh: bool) -> NDArray[np.uint8]:
        if not fresh:
            found: NDArray[np.uint8] = np.load(self.part, mmap_mode="r+", allow_pickle=False)
            return found
        self.part.parent.mkdir(parents=True, exist_ok=True)
        mapped: NDArray[np.uint8] = np.lib.format.open_memmap(self.part, "w+", np.uint8, shape)
        with self.part.open("r+b") as file:  # claim the room now: a full disk met in the map would kill the process
            os.posix_fallocate(file.fileno(), 0, self.part.stat().st_size)
        return mapped

    def _safe(self, pixels: NDArray[np.uint8]) -> None:
        assert isinstance(pixels, np.memmap)
        pixels.flush()

    def _done(self) -> set[int]:
        """Rows named by the journal's lines; the last may be cut off."""
        text = self.journal.read_text() if self.journal.is_file() else ""
        ranges = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return {row for start, stop in ranges for row in range(int(start), int(stop))}


def _rows(samples: Samples) -> list[int]:
    """Where each sample lies in the file: its id's rank."""
    rank = {name: position for position, name in enumerate(sorted(samples.ids))}
    return [rank[name] for name in samples.ids]


def _pixels(samples: Samples, index: int) -> NDArray[np.uint8]:
    image = samples.image(index)
    if isinstance(image, Tensor):
        raise BadInputError(f"images of '{samples.name}' are float tensors", expected="images of 8 bits in a cache")
    return image
