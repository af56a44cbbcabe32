"""ImageNet-Sketch: 50,889 black and white drawings of ImageNet's 1,000 classes.

Wang et al. (2019), arXiv:1905.13549.
"""

from robustbench_kpca.data.io.folder import ImageFiles
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.sets._imagenet_files import load_collection

IMAGES = 50_889


def load(request: Request) -> ImageFiles:
    """Load the only split, `test`; see `load_collection`."""
    return load_collection(request, "imagenet-sketch", IMAGES)
