"""Store a generated image as the released ImageNet-C was stored: as JPEG with quality 85.

Hendrycks & Dietterich (2019), arXiv:1903.12261: their script saves with Pillow, quality 85, optimised, chroma halved in
both directions (Pillow's default). For noise this step removes much of the colour, so it is part of the data set.
"""

import io

import numpy as np
from PIL import Image

from robustbench_kpca.corruptions.shared.kernels import Pixels

QUALITY = 85


def store(image: Pixels) -> Pixels:
    """Encode and decode an image (height, width, 3). `optimize` is omitted: it does not change the decoded image."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=QUALITY)
    return np.array(Image.open(file, formats=["JPEG"]))
