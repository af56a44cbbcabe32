"""Bundled: 1,797 handwritten digits from scikit-learn, as 32 x 32 RGB images.

Source: UCI "Optical Recognition of Handwritten Digits" (Alpaydin & Kaynak, 1998; CC BY 4.0), the 8 x 8 test part that
scikit-learn bundles. An 8 x 8 digit with values 0 to 16 is enlarged fourfold by bilinear interpolation (pixel centres
at (i + 1/2) / 4 - 1/2, edges repeated), scaled to 0 to 255, rounded, and repeated over three channels.

The split is fixed and stratified: within each class, in the bundled order, positions 0 and 5 of every ten are `test`
(364 images), position 1 is `val` (183), the rest is `train` (1,250). The bundled file does not say who wrote which
digit, so the same writers occur in every part: the accuracy is that on known writers.
"""

import gzip
from functools import cache

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.data.io.place import scikit_learns
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.samples import ArraySamples

SPLITS = {"test": (0, 5), "val": (1,), "train": (2, 3, 4, 6, 7, 8, 9)}
SCALE = 4


def enlarge(digits: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Map (n, 8, 8) in [0, 16] to uint8 (n, 32, 32, 3)."""
    size = digits.shape[-1]
    centres = np.clip((np.arange(SCALE * size) + 0.5) / SCALE - 0.5, 0, size - 1)
    weights = np.maximum(0, 1 - np.abs(centres[:, None] - np.arange(size)))  # (32, 8), rows sum to 1
    large = np.rint(weights @ (digits * (255 / 16)) @ weights.T).astype(np.uint8)
    return np.repeat(large[..., None], 3, axis=-1)


@cache
def _digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return all digits, (1797, 8, 8), and their labels."""
    with gzip.open(scikit_learns("data/digits.csv.gz"), "rt", encoding="utf-8") as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)


def load(request: Request) -> ArraySamples:
    """Return one part of the split: `test` (the default), `val` or `train`."""
    request.refuse_folder("digits")
    split = request.split_of("digits", list(SPLITS))
    digits, labels = _digits()
    position = np.empty(len(labels), dtype=int)
    for label in range(10):
        members = np.flatnonzero(labels == label)
        position[members] = np.arange(len(members)) % 10
    chosen = np.flatnonzero(np.isin(position, SPLITS[split]))
    images, ids = enlarge(digits[chosen]), [f"digits/{index:04d}" for index in chosen]
    return ArraySamples(images, labels[chosen].tolist(), name="digits", split=split, ids=ids, classes=10)
