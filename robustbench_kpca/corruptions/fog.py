"""Fog: add a plasma fractal to the image, then rescale to the image's largest value.

Hendrycks & Dietterich (2019), arXiv:1903.12261; parameters of the released `create_c` scripts (224 px and CIFAR). At
those two sizes the map has their size (256 and 32 points per side), otherwise the next power of 2, as in
imagecorruptions.
"""

from typing import ClassVar

import cv2
import numpy as np

from robustbench_kpca.corruptions._plasma import plasma, side_for
from robustbench_kpca.corruptions.shared.kernels import Pixels, parameters_of


class Fog:
    """(x + c * plasma) * top / (top + c), with top the largest value of the image."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[tuple[float, float], ...]]] = parameters_of(
        ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4)),
        cifar=((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)),
    )

    def exact(self, image: Pixels, parameter: tuple[float, float], rng: np.random.RandomState) -> Pixels:
        """Add the fog; `parameter` is (c, `decay` of the plasma fractal)."""
        height, width, _ = image.shape
        thickness, decay = parameter
        fog = thickness * plasma(side_for(height, width), decay, rng.random_sample)[:height, :width]
        unit = image / 255.0
        top = unit.max()
        unit += cv2.merge([fog, fog, fog])
        unit *= top
        unit /= top + thickness
        unit *= 255
        return unit.astype(np.uint8)

    def fast(self, image: Pixels, parameter: tuple[float, float], rng: np.random.Generator) -> Pixels:
        """Add the fog in single precision; the image is scaled with a table."""
        height, width, _ = image.shape
        thickness, decay = parameter
        share = float(image.max()) / (float(image.max()) + 255 * thickness)
        fog = plasma(side_for(height, width), decay, lambda shape: rng.random(shape, np.float32))[:height, :width]
        fog *= 255 * thickness * share
        out = np.asarray(cv2.LUT(image, np.arange(256, dtype=np.float32) * np.float32(share)), np.float32)
        out += np.asarray(cv2.merge([fog, fog, fog]), np.float32)
        return out.astype(np.uint8)


CORRUPTION = Fog()
