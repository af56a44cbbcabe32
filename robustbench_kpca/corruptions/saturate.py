"""Saturate: change the saturation (HSV); hue and value stay the same.

Hendrycks & Dietterich (2019), arXiv:1903.12261, one of the four extra corruptions; parameters of the released
`create_c` scripts (224 px and CIFAR). Severities 1 and 2 reduce the saturation, 3 to 5 increase it.
"""

from typing import ClassVar

from robustbench_kpca.corruptions._hsv import recolour
from robustbench_kpca.corruptions.shared.kernels import Pixels, parameters_of


class Saturate:
    """S' = min(a S + b, 1) in HSV; a grey pixel counts as hue 0 (red)."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[tuple[float, float], ...]]] = parameters_of(
        ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2)),
        cifar=((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)),
    )

    def exact(self, image: Pixels, parameter: tuple[float, float], rng: object = None) -> Pixels:  # noqa: ARG002
        """Change the saturation, which is in [0, 1]; `parameter` is (a, b)."""
        gain, offset = parameter
        return recolour(image, gain=gain, offset=offset)

    fast = exact


CORRUPTION = Saturate()
