"""JPEG compression: encode the image at low quality and decode it.

Hendrycks & Dietterich (2019), arXiv:1903.12261; parameters of the released `create_c` scripts (224 px and CIFAR).
As in those scripts, Pillow encodes and decodes, with 4:2:0 chroma and its default tables.
"""

from io import BytesIO
from typing import ClassVar

import numpy as np
from PIL import Image

from robustbench_kpca.corruptions.shared.kernels import Pixels, parameters_of


class JpegCompression:
    """decode(encode(x, quality))."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[int, ...]]] = parameters_of((25, 18, 15, 10, 7), cifar=(80, 65, 58, 50, 40))

    def exact(self, image: Pixels, parameter: int, rng: object = None) -> Pixels:  # noqa: ARG002 (draws nothing)
        """Store and read back; `parameter` is the quality, 1 to 95."""
        stored = BytesIO()
        Image.fromarray(image).save(stored, "JPEG", quality=parameter)
        return np.array(Image.open(stored))

    fast = exact


CORRUPTION = JpegCompression()
