"""ImageNet-C-bar: ImageNet's validation images under 10 other corruptions at 5 severities, as published (224 px files).

Mintun et al. (2021), arXiv:2102.11273. The layout of the folder is described in `_cell_folders`.
"""

from robustbench_kpca.data.request import Request
from robustbench_kpca.data.sets._cell_folders import CellFolders

BAR = (
    "blue_noise_sample", "brownish_noise", "caustic_refraction", "checkerboard_cutout", "cocentric_sine_waves",
    "inverse_sparkles", "perlin_noise", "plasma_noise", "single_frequency_greyscale", "sparkles",
)  # fmt: skip
"""Spelled like the published folders."""


def load(request: Request) -> CellFolders:
    """Load the only split, `val`; see `CellFolders`."""
    return CellFolders(request, "imagenet-c-bar", BAR)
