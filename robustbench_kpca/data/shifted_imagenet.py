"""The published sets beside ImageNet: other images of its classes, or its validation images corrupted. No torch."""

from dataclasses import dataclass

from robustbench_kpca.protocols.corruption_names import COMMON, EXTRA

_BAR = (
    "blue_noise_sample", "brownish_noise", "caustic_refraction", "checkerboard_cutout", "cocentric_sine_waves",
    "inverse_sparkles", "perlin_noise", "plasma_noise", "single_frequency_greyscale", "sparkles",
)  # fmt: skip
"""Spelled like the published folders."""
_DEPTH = ("near_focus", "far_focus", "flash", "fog_3d", "xy_motion_blur", "z_motion_blur")
_CAMERA = ("bit_error", "color_quant", "h265_abr", "h265_crf", "iso_noise", "low_light")
"""The twelve of 3DCC that were published for ImageNet; the other eight need more of a scene than its depth."""


@dataclass(frozen=True)
class Shifted:
    """One set.

    Attributes:
        what: the set in one line.
        images: how many were published, under each corruption at each severity where they are corrupted.
        classes: number of classes of the labels; 0 where the images belong to none of the classes of their folders.
        corruptions: in the published order; empty for a collection of other images.
    """

    what: str
    images: int
    classes: int = 1000
    corruptions: tuple[str, ...] = ()


SHIFTED = {
    # Hendrycks et al. (2021), arXiv:1907.07174
    "imagenet-a": Shifted(
        "ImageNet-A: 7,500 photographs of 200 ImageNet classes that a ResNet-50 misclassifies.", 7500
    ),
    "imagenet-o": Shifted(
        "ImageNet-O: 2,000 images of classes that are not in ImageNet-1K, for out-of-distribution detection.", 2000, 0
    ),
    # Hendrycks et al. (2021), arXiv:2006.16241
    "imagenet-r": Shifted(
        "ImageNet-R: 30,000 paintings, cartoons and other renditions of 200 ImageNet classes.", 30_000
    ),
    # Wang et al. (2019), arXiv:1905.13549
    "imagenet-sketch": Shifted("ImageNet-Sketch: 50,889 black and white drawings of ImageNet's 1,000 classes.", 50_889),
    # Recht et al. (2019), arXiv:1902.10811
    "imagenet-v2": Shifted(
        "ImageNet-V2: 10,000 new photographs of ImageNet's 1,000 classes; class folders are named 0 to 999.", 10_000
    ),
    # Hendrycks & Dietterich (2019), arXiv:1903.12261
    "imagenet-c": Shifted(
        "ImageNet-C: ImageNet's validation images under 19 corruptions at 5 severities, as published (224 px files).",
        50_000,
        corruptions=COMMON + EXTRA,
    ),
    # Mintun et al. (2021), arXiv:2102.11273
    "imagenet-c-bar": Shifted(
        "ImageNet-C-bar: ImageNet's validation images under 10 other corruptions at 5 severities, as published (224 px "
        "files).",
        50_000,
        corruptions=_BAR,
    ),
    # Kar, Yeo, Atanov & Zamir (2022), arXiv:2203.01441
    "imagenet-3dcc": Shifted(
        "ImageNet-3DCC: ImageNet's validation images under 12 corruptions by depth, light and camera at 5 severities, "
        "as published (224 px files).",
        50_000,
        corruptions=_DEPTH + _CAMERA,
    ),
}
