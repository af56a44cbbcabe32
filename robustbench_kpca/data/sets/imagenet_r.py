"""ImageNet-R: 30,000 paintings, cartoons and other renditions of 200 ImageNet classes.

Hendrycks et al. (2021), arXiv:2006.16241.
"""

from robustbench_kpca.data.io.folder import ImageFiles
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.sets._imagenet_files import load_collection

IMAGES = 30_000


def load(request: Request) -> ImageFiles:
    """Load the only split, `test`; see `load_collection`."""
    return load_collection(request, "imagenet-r", IMAGES)
