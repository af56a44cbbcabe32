"""ImageNet-C: ImageNet's validation images under 19 corruptions at 5 severities, as published (224 px files).

Hendrycks & Dietterich (2019), arXiv:1903.12261. The layout of the folder is described in `_cell_folders`.
"""

from robustbench_kpca.data.request import Request
from robustbench_kpca.data.sets._cell_folders import CellFolders
from robustbench_kpca.protocols.corruption_names import COMMON, EXTRA


def load(request: Request) -> CellFolders:
    """Load the only split, `val`; see `CellFolders`."""
    return CellFolders(request, "imagenet-c", COMMON + EXTRA)
