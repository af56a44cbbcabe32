"""Pixelate: shrink the image by averaging and enlarge it again, like a low-resolution sensor.

Hendrycks & Dietterich (2019), arXiv:1903.12261; parameters of the released `create_c` scripts (224 px and CIFAR). They
enlarge with a box filter, imagecorruptions with the nearest pixel: identical unless a pixel overlaps two source pixels.
"""

import math
from typing import ClassVar

import numpy as np
from PIL import Image
from PIL.Image import Resampling

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.corruptions.shared.kernels import Pixels

SHARES = (0.6, 0.5, 0.4, 0.3, 0.25)


class Pixelate:
    """enlarge(shrink(x, c))."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[tuple[float, Resampling], ...]]] = {
        "imagenet_c": tuple((share, Resampling.BOX) for share in SHARES),
        "imagecorruptions": tuple((share, Resampling.NEAREST) for share in SHARES),
        "cifar_c": tuple((share, Resampling.BOX) for share in (0.95, 0.9, 0.85, 0.75, 0.65)),
    }

    def exact(self, image: Pixels, parameter: tuple[float, Resampling], rng: object = None) -> Pixels:  # noqa: ARG002
        """Shrink and enlarge; `parameter` is (fraction of each side after shrinking, filter of the enlargement)."""
        share, enlarger = parameter
        height, width, _ = image.shape
        small = (int(width * share), int(height * share))
        if min(small) == 0:
            raise BadInputError(
                f"pixelate would shrink {height} x {width} pixels to nothing",
                expected=f"both sides at least {math.ceil(1 / share)}",
            )
        shrunk = Image.fromarray(image).resize(small, Resampling.BOX)
        return np.array(shrunk.resize((width, height), enlarger))

    fast = exact


CORRUPTION = Pixelate()
