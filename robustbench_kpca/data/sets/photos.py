"""Bundled: 320 patches of two photographs, 32 x 32 RGB, out of distribution for models of digits or CIFAR.

Source: the two photographs that scikit-learn bundles, `china.jpg` (by danielbuechele) and `flower.jpg` (by vultilion),
640 x 427, both under a Creative Commons Attribution licence. From the top left corner, each is cut into 10 rows of 16
squares of 40 x 40 (the lowest 27 rows of pixels are left out), and every square is shrunk by exact area averaging: each
pixel becomes 4 x 4, and blocks of 5 x 5 of those are averaged and rounded. No two patches overlap.

They have no labels, so that no accuracy is computed on them by mistake: use them as out-of-distribution data.
"""

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.data.io.place import scikit_learns
from robustbench_kpca.data.io.reading import read_rgb
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.samples import ArraySamples

PATCH, SIZE = 40, 32
_REPEAT, _BLOCK = 4, 5  # 40 x 4 = 32 x 5


def shrink(patches: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Map uint8 (n, 40, 40, 3) to (n, 32, 32, 3)."""
    fine = patches.repeat(_REPEAT, 1).repeat(_REPEAT, 2).astype(np.int64)
    blocks = fine.reshape((len(patches), SIZE, _BLOCK, SIZE, _BLOCK, 3)).sum((2, 4))
    shrunk: NDArray[np.uint8] = ((2 * blocks + _BLOCK**2) // (2 * _BLOCK**2)).astype(np.uint8)
    return shrunk


def load(request: Request) -> ArraySamples:
    """Return all patches; the only split is `test`."""
    request.refuse_folder("photos")
    split = request.split_of("photos", ("test",))
    patches, ids = [], []
    for name in ("china", "flower"):
        photo = np.asarray(read_rgb(scikit_learns(f"images/{name}.jpg")))
        for row in range(photo.shape[0] // PATCH):
            for column in range(photo.shape[1] // PATCH):
                top, left = PATCH * row, PATCH * column
                patches.append(photo[top : top + PATCH, left : left + PATCH])
                ids.append(f"photos/{name}/{row:02d}-{column:02d}")
    return ArraySamples(shrink(np.stack(patches)), [0] * len(ids), name="photos", split=split, ids=ids, classes=0)
