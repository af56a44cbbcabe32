"""Which corruptions papers mean: their names, groups and order, said once.

Hendrycks & Dietterich (2019), "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
arXiv:1903.12261, figure 1.
"""

GROUPS: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
}
"""`extra` are the four that the paper keeps for validation: no mean over corruptions counts them."""
EXTRA = GROUPS["extra"]
COMMON: tuple[str, ...] = tuple(name for group, names in GROUPS.items() if group != "extra" for name in names)
"""The 15 corruptions that mCE is the mean over."""
SEVERITIES = (1, 2, 3, 4, 5)
