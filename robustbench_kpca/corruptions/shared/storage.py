"""A picture made here has been stored as the released ImageNet-C was: as a JPEG of quality 85.

Hendrycks & Dietterich (2019), arXiv:1903.12261: their script saves with Pillow, quality 85, optimised, chroma halved in
both directions (Pillow's default). On noise this step averages much of the colour away, so it is part of the data set.
"""

import io

import numpy as np
from PIL import Image

from robustbench_kpca.corruptions._kernels import Pixels

QUALITY = 85


def store(image: Pixels) -> Pixels:
    """Save (height, width, 3) and read it back. Optimising would only change how the same numbers are coded."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=QUALITY)
    return np.array(Image.open(file, formats=["JPEG"]))
