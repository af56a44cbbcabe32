"""Outlier tokens: some of the 16 squares of a picture, such as a transformer's tokens, become uniform noise.

Of this project. Nobody attacks: where and what is drawn, as contamination is in robust statistics. Robust PCA, from
which RPC attention comes (Teo & Nguyen, 2024, arXiv:2406.13762), is to resist a few gross errors.
"""

from typing import ClassVar

import numpy as np

from robustbench_kpca.corruptions.shared.kernels import Pixels

SQUARES = 4
"""Along each side."""
COUNTS = (1, 2, 3, 4, 5)


class OutlierTokens:
    """x with c different squares of its grid of 4 x 4, drawn uniformly, replaced by independent uniform levels."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[int, ...]]] = dict.fromkeys(
        ("imagenet_c", "imagecorruptions", "cifar_c"), COUNTS
    )

    def exact(self, image: Pixels, parameter: int, rng: np.random.RandomState | np.random.Generator) -> Pixels:
        """Replace squares; `parameter` is c. Sides of other sizes than 4 k are cut as evenly as whole pixels allow."""
        corrupted = image.copy()
        rows, columns = (np.linspace(0, size, SQUARES + 1).astype(int) for size in image.shape[:2])
        for square in rng.permutation(SQUARES**2)[:parameter]:
            row, column = divmod(int(square), SQUARES)
            part = corrupted[rows[row] : rows[row + 1], columns[column] : columns[column + 1]]
            part[:] = np.frombuffer(rng.bytes(part.size), np.uint8).reshape(part.shape)
        return corrupted

    fast = exact


CORRUPTION = OutlierTokens()
