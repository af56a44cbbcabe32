"""ImageNet-A: 7,500 photographs of 200 ImageNet classes that a ResNet-50 misclassifies.

Hendrycks et al. (2021), arXiv:1907.07174.
"""

from robustbench_kpca.data.io.folder import ImageFiles
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.sets._imagenet_files import load_collection

IMAGES = 7_500


def load(request: Request) -> ImageFiles:
    """Load the only split, `test`; see `load_collection`."""
    return load_collection(request, "imagenet-a", IMAGES)
