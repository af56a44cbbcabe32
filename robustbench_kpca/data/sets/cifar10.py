"""CIFAR-10 from a folder, or from RBK_DATA: 32 x 32 RGB photographs of ten classes, not included in the package.

Krizhevsky (2009), "Learning Multiple Layers of Features from Tiny Images". Two layouts are supported, in this order:

- `cifar-10-batches-bin/`, the official binary version: exact pixels, 50,000 training and 10,000 test images;
- `cifar10/cifar10_{train,test}_jpeg.npz`, a lossy JPEG copy (quality 75), which is named `cifar10-jpeg` in records.
  Arrays: `jpeg`, all files concatenated; `offset`; labels `y`; `name`.

`val` is every twentieth training image of each class, in order; `train` is the rest. `first1000` are the first 1,000
test images, on which RobustBench attacks.
"""

import io
import itertools
import os
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError, UnfitError, reason_of
from robustbench_kpca.data.io.place import ENVIRONMENT_VARIABLE
from robustbench_kpca.data.io.reading import open_image
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.samples import ArraySamples

SPLITS = ("test", "train", "val", "first1000")
CLASSES = 10
EVERY = 20
PUBLISHED = {"test": 10_000, "train": 47_500, "val": 2_500, "first1000": 1_000}
"""Images of each split of the published set."""
BINARY = "cifar-10-batches-bin"
_Part = tuple[NDArray[np.uint8], NDArray[np.int64], list[str], str]


def load(request: Request) -> ArraySamples:
    """Return `test` (the default), `val`, `train` or `first1000`."""
    split = request.split_of("cifar10", SPLITS)
    folder = request.folder or os.environ.get(ENVIRONMENT_VARIABLE)
    if not folder:
        raise BadInputError(
            "cifar10 is not included in the package", fix=f"give cifar10:FOLDER, or set {ENVIRONMENT_VARIABLE}"
        )
    images, labels, names, kind = _read(Path(folder), "test" if split in ("test", "first1000") else "train")
    if split == "first1000":
        images, labels, names = images[:1000], labels[:1000], names[:1000]
    elif split != "test":
        chosen = np.flatnonzero(_held_out(labels) == (split == "val"))
        images, labels, names = images[chosen], labels[chosen], [names[i] for i in chosen]
    samples = ArraySamples(images, labels.tolist(), name=kind, split=split, ids=names, classes=CLASSES)
    if kind == "cifar10":
        samples.expected = PUBLISHED[split]
    return samples


def _held_out(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    position = np.empty(len(labels), dtype=int)
    for label in range(CLASSES):
        members = np.flatnonzero(labels == label)
        position[members] = np.arange(len(members))
    held_out: NDArray[np.bool_] = position % EVERY == EVERY - 1
    return held_out


def _read(folder: Path, part: str) -> _Part:
    binary, copy = folder / BINARY, folder / "cifar10" / f"cifar10_{part}_jpeg.npz"
    try:
        if binary.is_dir():
            return _binary(binary, part)
        if copy.is_file():
            return _jpeg(copy, part)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise BadInputError(f"CIFAR-10 in {folder} cannot be read ({reason_of(error)})", fix="copy it again") from None
    raise BadInputError(
        f"{folder} does not contain CIFAR-10",
        expected=f"{BINARY}/ or {copy.relative_to(folder)}",
    )


def _binary(folder: Path, part: str) -> _Part:
    """Read records of one label byte and 3,072 bytes: red, green and blue planes, row by row."""
    files = ["test_batch.bin"] if part == "test" else [f"data_batch_{number}.bin" for number in range(1, 6)]
    raw = np.concatenate([np.frombuffer((folder / file).read_bytes(), np.uint8) for file in files])
    records = raw.reshape(-1, 1 + 3 * 32 * 32)
    images = np.ascontiguousarray(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return images, records[:, 0].astype(np.int64), [f"{part}/{i:05d}" for i in range(len(records))], "cifar10"


def _jpeg(path: Path, part: str) -> _Part:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        data, offset = arrays["jpeg"].tobytes(), arrays["offset"].tolist()
        labels, names = arrays["y"].astype(np.int64), [f"{part}/{name}" for name in arrays["name"].tolist()]
    if not len(offset) - 1 == len(labels) == len(names) or offset[-1] != len(data) or offset != sorted(offset):
        raise UnfitError(f"{len(labels)} labels, {len(names)} names, {len(offset)} offsets up to {offset[-1:]}")
    images = np.empty((len(labels), 32, 32, 3), np.uint8)
    for index, (start, stop) in enumerate(itertools.pairwise(offset)):
        with open_image(io.BytesIO(data[start:stop]), f"{index} of {path}") as picture:
            if picture.size != (32, 32):
                raise UnfitError(f"image {index} has {picture.size[0]} x {picture.size[1]} pixels")
            images[index] = np.asarray(picture.convert("RGB"))
    return images, labels, names, "cifar10-jpeg"
