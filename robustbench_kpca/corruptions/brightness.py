"""Brightness: increase the value (HSV) of every pixel; hue and saturation stay the same.

Hendrycks & Dietterich (2019), arXiv:1903.12261; parameters of the released `create_c` scripts (224 px and CIFAR).
"""

from typing import ClassVar

from robustbench_kpca.corruptions._hsv import recolour
from robustbench_kpca.corruptions.shared.kernels import Pixels, parameters_of


class Brightness:
    """V' = min(V + c, 1) in HSV."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[float, ...]]] = parameters_of(
        (0.1, 0.2, 0.3, 0.4, 0.5), cifar=(0.05, 0.1, 0.15, 0.2, 0.3)
    )

    def exact(self, image: Pixels, parameter: float, rng: object = None) -> Pixels:  # noqa: ARG002 (draws nothing)
        """Add `parameter` to the value, which is in [0, 1]."""
        return recolour(image, lift=parameter)

    fast = exact


CORRUPTION = Brightness()
