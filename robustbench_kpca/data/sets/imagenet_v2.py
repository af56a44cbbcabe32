"""ImageNet-V2: 10,000 new photographs of ImageNet's 1,000 classes; class folders are named 0 to 999.

Recht et al. (2019), arXiv:1902.10811.
"""

from robustbench_kpca.data.io.folder import ImageFiles
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.sets._imagenet_files import load_collection

IMAGES = 10_000


def load(request: Request) -> ImageFiles:
    """Load the only split, `test`; see `load_collection`."""
    return load_collection(request, "imagenet-v2", IMAGES)
