"""AlexNet's errors on ImageNet-C, by name, severity and source: what mCE divides by.

All are top-1 errors in [0, 1] of torchvision's pretrained AlexNet. Every look-up is by name: where public code holds
such constants as a list, a reordered list of names has silently moved a published mCE by three points.
"""

from robustbench_kpca.metrics.shared.error_table import ErrorTable

ALEXNET_ERRORS: dict[str, tuple[float, float, float, float, float]] = {
    "gaussian_noise": (0.69528, 0.82542, 0.93554, 0.98138, 0.99452),
    "shot_noise": (0.71224, 0.85108, 0.93574, 0.98182, 0.99146),
    "impulse_noise": (0.78374, 0.89808, 0.94870, 0.98720, 0.99548),
    "defocus_blur": (0.65624, 0.73202, 0.85036, 0.91364, 0.94714),
    "glass_blur": (0.64308, 0.75054, 0.88806, 0.91622, 0.93344),
    "motion_blur": (0.58430, 0.70048, 0.82108, 0.89750, 0.92638),
    "zoom_blur": (0.70008, 0.76992, 0.80784, 0.84198, 0.87198),
    "snow": (0.71726, 0.88392, 0.86468, 0.91870, 0.94952),
    "frost": (0.61390, 0.79734, 0.88790, 0.89942, 0.93430),
    "fog": (0.67474, 0.76050, 0.84378, 0.87260, 0.94500),
    "brightness": (0.45140, 0.48502, 0.54048, 0.62166, 0.72440),
    "contrast": (0.64548, 0.76150, 0.88874, 0.97760, 0.99270),
    "elastic_transform": (0.52596, 0.70116, 0.55686, 0.64076, 0.80554),
    "pixelate": (0.52218, 0.54620, 0.73728, 0.87092, 0.91262),
    "jpeg_compression": (0.51002, 0.54718, 0.57294, 0.65458, 0.74778),
}
"""Errors at severities 1 to 5 on ImageNet-C (50,000 images a cell); source: hendrycks/robustness, issue 10."""

ALEXNET_MEANS: dict[str, float] = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
"""Means over the five severities: the constants that papers divide by; source: README of hendrycks/robustness.

They are exactly the means of `ALEXNET_ERRORS`; rounded to three digits, as some codes hold them, they move mCE.
"""

ALEXNET_EXTRA_MEANS: dict[str, float] = {
    "speckle_noise": 0.845388,
    "gaussian_blur": 0.787108,
    "spatter": 0.717512,
    "saturate": 0.658248,
}
"""Means over the five severities; errors by severity are not published.

Source: facebookresearch/augmentation-corruption (Mintun, Kirillov & Xie 2021, arXiv:2102.11273), the file
`mCE_baseline_imagenet.p`.
"""

ALEXNET_CLEAN = 0.43478
"""Error on the ImageNet validation images: 1 minus torchvision's published top-1 accuracy of 56.522 %.

Others use 0.4348 (google-research/robustness_metrics) or 0.435 (facebookresearch/augmentation-corruption); the choice
moves the relative mCE by less than 0.1 points.
"""

ALEXNET = ErrorTable(
    "AlexNet",
    {(name, severity): error for name, row in ALEXNET_ERRORS.items() for severity, error in enumerate(row, start=1)},
    ALEXNET_CLEAN,
    ALEXNET_EXTRA_MEANS,
)
"""The reference of ImageNet-C, for its images as stored (224 px, not resized again): for no others."""
