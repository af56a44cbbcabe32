"""Cache decoded images: decode every image of a set once into one file; or keep them in memory, as grids need them."""

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError, EvaluationError, reason_of
from robustbench_kpca._core.files import unwritable
from robustbench_kpca._core.lock import locked
from robustbench_kpca._core.progress import Progress
from robustbench_kpca.data.cells import CellSamples
from robustbench_kpca.data.io.reading import map_array
from robustbench_kpca.data.samples import Samples

CHUNK = 256  # number of images per journal entry: 38 MB at 224 px


def cached(samples: Samples, folder: Path, progress: Progress | None = None) -> Samples:
    """Decode every image once into a file in `folder`; return the same samples (ids, labels, digest), read from it.

    The file is an ordinary `.npy` of uint8 (images, height, width, 3), sorted by id. Its name contains the digest of
    the samples and the version of Pillow, on which decoded pixels depend. It gets this name when it is complete.
    Interrupted work is resumed, and a second process waits for the first.

    Raises:
        BadInputError: images of different sizes, not 8-bit, unreadable, or stored corruptions; a folder that is not
            writable.
        EvaluationError: the disk is full.
    """
    if isinstance(samples, CellSamples):
        raise BadInputError(
            f"--cache with '{samples.name}'", expected="no cache, because stored corruptions are read directly"
        )
    path = folder / f"{samples.digest()}-pillow-{PIL.__version__}.npy"
    try:
        if not path.is_file():
            with locked(folder / f".{path.stem}.lock", wait=True):
                if not path.is_file():
                    _Building(samples, path).run(progress)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise EvaluationError(
                f"cannot write {path} ({reason_of(error)})", fix="free disk space, run again"
            ) from None
        raise unwritable(folder, error) from None
    return CachedSamples(samples, path)


class CachedSamples(Samples):
    """Samples whose decoded images are in one memory-mapped file; ids, labels and digest are those of the originals."""

    def __init__(self, source: Samples, path: Path) -> None:
        super().__init__(source.name, source.split, source.ids, source.strata, source.classes)
        self.source, self.path = source, path
        self.skipped, self.expected, self.known_classes = source.skipped, source.expected, source.known_classes
        self.class_names, self.raw, self.resized = source.class_names, source.raw, source.resized
        self.notes = source.notes
        self.counted, self.held = source.counted, source.held
        self.rows = _rows(source)
        self.map: NDArray[np.uint8] | None = None
        stored, first = self._open(), np.asarray(source.image(0))
        if stored.dtype != np.uint8 or stored.shape != (len(self), *first.shape) or (self.image(0) != first).any():
            raise BadInputError(
                f"{path} contains {stored.dtype} of shape {stored.shape}",
                expected=f"the {len(self)} images of '{self.name}', decoded",
                fix="remove it",
            )

    def image(self, index: int) -> NDArray[np.uint8]:
        """Read one image."""
        return np.array(self._open()[self.rows[index]])

    def fingerprint(self, index: int) -> str:
        """Return the fingerprint of the original."""
        return self.source.fingerprint(index)

    def _open(self) -> NDArray[np.uint8]:
        if self.map is None:
            try:
                self.map = map_array(self.path)
            except (OSError, ValueError, EOFError) as error:
                raise BadInputError(f"{self.path} cannot be read ({reason_of(error)})", fix="remove it") from None
        return self.map

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"map": None}  # pickling the map would copy all images


class _Building:
    """An unfinished cache: a file of pixels under another name, and a journal of the rows that are on disk."""

    def __init__(self, samples: Samples, path: Path) -> None:
        self.samples, self.path = samples, path
        self.part, self.journal = path.with_suffix(".part"), path.with_suffix(".progress")
        self.index = sorted(range(len(samples)), key=samples.ids.__getitem__)  # index of the sample in each row

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
                    expected="images of one size, for a cache",
                )
            pixels[row] = image

        with ThreadPoolExecutor() as pool, self.journal.open("a" if done else "w") as journal:
            for start in range(0, total, CHUNK):
                stop = min(start + CHUNK, total)
                todo = [row for row in range(start, stop) if row not in done]
                if todo:
                    list(pool.map(decode, todo))
                    self._flush(pixels)
                    journal.write(f"{start} {stop}\n")
                    journal.flush()
                    os.fsync(journal.fileno())
                if progress is not None:
                    progress(stop, total)

    def _map(self, shape: tuple[int, ...], *, fresh: bool) -> NDArray[np.uint8]:
        if not fresh:
            return map_array(self.part, "r+")
        self.part.parent.mkdir(parents=True, exist_ok=True)
        mapped: NDArray[np.uint8] = np.lib.format.open_memmap(self.part, "w+", np.uint8, shape)
        # Reserve the space now: a full disk while writing to the map would kill the process.
        with self.part.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, self.part.stat().st_size)
        return mapped

    def _flush(self, pixels: NDArray[np.uint8]) -> None:
        assert isinstance(pixels, np.memmap)
        pixels.flush()

    def _done(self) -> set[int]:
        """Return the rows listed in the journal; an incomplete last line is ignored."""
        text = self.journal.read_text() if self.journal.is_file() else ""
        ranges = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return {row for start, stop in ranges for row in range(int(start), int(stop))}


def _rows(samples: Samples) -> list[int]:
    """Return the row of each sample in the file: the rank of its id."""
    rank = {name: position for position, name in enumerate(sorted(samples.ids))}
    return [rank[name] for name in samples.ids]


def _pixels(samples: Samples, index: int) -> NDArray[np.uint8]:
    image = samples.image(index)
    if isinstance(image, Tensor):
        raise BadInputError(f"images of '{samples.name}' are float tensors", expected="8-bit images, for a cache")
    return image


@dataclass
class Remembered:
    """Calls `read` once an index while the results fit in `limit` bytes a process; they must not be changed.

    What was read first is kept: a grid shows the images in one order again and again, and of more images than fit, the
    most recent ones would always be gone before their turn comes.
    """

    read: Callable[[int], Any]
    limit: int = 2**28
    kept: dict[int, Any] = field(default_factory=dict)
    size: int = 0

    def __call__(self, index: int) -> Any:
        """Return item number `index`."""
        if index in self.kept:
            return self.kept[index]
        item = self.read(index)
        if self.size + item.nbytes <= self.limit:
            self.kept[index] = item
            self.size += item.nbytes
        return item
