"""ImageNet-O: 2,000 images of classes that are not in ImageNet-1K, for out-of-distribution detection.

Hendrycks et al. (2021), arXiv:1907.07174. Its folders have the names of 200 ImageNet classes, but the images belong to
none of them, so they have no labels.
"""

from robustbench_kpca.data.io.folder import ImageFiles
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.sets._imagenet_files import load_collection

IMAGES = 2_000


def load(request: Request) -> ImageFiles:
    """Load the only split, `test`; see `load_collection`."""
    return load_collection(request, "imagenet-o", IMAGES, classes=0)
