"""CIFAR-10-C: CIFAR-10's test images under 19 corruptions at 5 severities, as published.

Hendrycks & Dietterich (2019), arXiv:1903.12261. The folder contains `CORRUPTION.npy`, uint8 (50000, 32, 32, 3) with the
severities in five blocks, and `labels.npy`. The arrays are memory-mapped.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca.data.cells import CellSamples
from robustbench_kpca.data.io.place import stored_folder
from robustbench_kpca.data.io.reading import map_array
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.samples import Samples, array_fingerprint
from robustbench_kpca.protocols.corruption_names import COMMON, EXTRA, SEVERITIES

IMAGES, CLASSES = 10_000, 10
LABELS = "labels.npy"
SHAPE = (len(SEVERITIES) * IMAGES, 32, 32, 3)


def load(request: Request) -> "Cifar10C":
    """Load the only split, `test`."""
    root = stored_folder("cifar10-c", request.folder)
    request.split_of("cifar10-c", ("test",))
    return Cifar10C(root)


class Cifar10C(CellSamples):
    """Stored corruptions of the CIFAR-10 test images; ids as in `cifar10`.

    Raises:
        BadInputError: an array that is not a corruption of this set, has another shape or type, or is damaged; labels
            that differ between severities.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.severities = root, SEVERITIES
        arrays = sorted(path.stem for path in root.glob("*.npy") if path.name != LABELS)
        foreign = sorted(set(arrays) - set(COMMON + EXTRA))
        if foreign or not arrays:
            what = f"'{foreign[0]}.npy', which is not one of its corruptions" if foreign else "no arrays"
            raise BadInputError(f"{root} is not cifar10-c: it has {what}", expected="files such as gaussian_noise.npy")
        self.corruptions = tuple(name for name in COMMON + EXTRA if name in arrays)
        for name in self.corruptions:
            _map(root / f"{name}.npy", SHAPE)
        labels = np.array(_map(root / LABELS, SHAPE[:1])).reshape(len(SEVERITIES), IMAGES)
        if labels.min() < 0 or labels.max() >= CLASSES or (labels != labels[0]).any():
            raise BadInputError(
                f"{root / LABELS} does not repeat {IMAGES} labels from 0 to 9 five times", fix="copy it again"
            )
        ids = [f"test/{i:05d}" for i in range(IMAGES)]
        super().__init__("cifar10-c", "test", ids, labels[0].tolist(), CLASSES)
        self.expected = IMAGES

    def has_clean(self) -> bool:
        """Return False: the clean images are not part of the set."""
        return False

    def _make(self, corruption: str, severity: int) -> "_Block":
        return _Block(self, self.root / f"{corruption}.npy", IMAGES * (severity - 1))


class _Block(Samples):
    def __init__(self, whole: Cifar10C, path: Path, start: int) -> None:
        super().__init__(whole.name, whole.split, whole.ids, whole.labels, whole.classes)
        self.path, self.start = path, start
        self.map: NDArray[np.uint8] | None = None

    def image(self, index: int) -> NDArray[np.uint8]:
        if self.map is None:
            self.map = _map(self.path, SHAPE)
        return np.array(self.map[self.start + index])

    def fingerprint(self, index: int) -> str:
        return array_fingerprint(self.image(index))

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"map": None}  # pickling the map would copy all images


def _map(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    try:
        array = map_array(path)
    except (OSError, ValueError, EOFError) as error:
        raise BadInputError(f"{path} cannot be read ({reason_of(error)})", fix="copy it again") from None
    if array.shape != shape or (array.dtype != np.uint8 if len(shape) > 1 else array.dtype.kind not in "iu"):
        raise BadInputError(
            f"{path} is {array.dtype} of shape {array.shape}",
            expected=f"{'uint8' if len(shape) > 1 else 'integers'} of shape {shape}",
        )
    return array
