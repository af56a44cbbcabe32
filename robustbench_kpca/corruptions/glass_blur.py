"""Glass blur: copy each pixel from a near one, between two Gaussian blurs, like frosted glass.

Hendrycks & Dietterich (2019), arXiv:1903.12261; parameters of the released `create_c` scripts (224 px and CIFAR).

The reference visits pixels from bottom right to top left and, for colour images, its swap is in effect a copy:
x[p] <- x[q]. Each pass is thus a graph of pointers: p takes the old value of q or, if q was visited earlier, its new
value. Pointers of the second kind lead to earlier visits, so pointer doubling resolves all of them in a few rounds.
"""

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.corruptions.gaussian_blur import flat, smooth, smooth_exactly
from robustbench_kpca.corruptions.shared.kernels import Pixels, parameters_of, settle, truncate

Index = NDArray[np.int32]


def walk(height: int, width: int, reach: int) -> tuple[slice, slice]:
    """Return the rectangle of pixels that a pass visits; every step from it stays in the image."""
    return slice(reach + 1, max(height - reach, reach) + 1), slice(reach + 1, max(width - reach, reach) + 1)


def follow(steps: Index, area: tuple[slice, slice], height: int, width: int) -> Index:
    """Return each pixel's source (flat index) after one pass that copies to pixels of `area` those `steps` away."""
    origin = np.arange(height * width, dtype=np.int32)
    moved = np.zeros((height, width), bool)
    moved[area] = True
    walked = origin.reshape(height, width)[area]
    source = walked + steps
    later = moved.ravel().take(source)
    later &= steps > 0
    walked[...] = np.where(later, ~source, source)  # ~q: take the new value of q
    unresolved = np.flatnonzero(origin < 0)
    while len(unresolved):
        earlier = origin.take(~origin.take(unresolved))
        origin[unresolved] = earlier
        unresolved = unresolved[earlier < 0]
    return origin


def shuffle(image: Pixels, passes: Iterable[Index], area: tuple[slice, slice]) -> Pixels:
    """Apply all passes of copies; each holds, for the pixels of `area`, steps in flat index."""
    height, width = image.shape[:2]
    origin = np.arange(height * width, dtype=np.int32)
    for steps in passes:
        origin = origin.take(follow(steps, area, height, width))
    return image.reshape(-1, 3).take(origin, axis=0, mode="clip").reshape(image.shape)


class GlassBlur:
    """N(sigma) * shuffled(N(sigma) * x)."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[tuple[float, int, int], ...]]] = parameters_of(
        ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        cifar=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    )

    def exact(self, image: Pixels, parameter: tuple[float, int, int], rng: np.random.RandomState) -> Pixels:
        """Blur, shuffle, blur; `parameter` is (sigma in pixels, reach in pixels, passes)."""
        sigma, reach, iterations = parameter
        height, width = image.shape[:2]
        area = walk(height, width, reach)
        shape = image[area].shape[:2]
        draws = [rng.randint(-reach, reach, size=(shape[0] * shape[1], 2))[::-1] for _ in range(iterations)]
        passes = [(draw @ [1, width]).astype(np.int32).reshape(shape) for draw in draws]
        shuffled = shuffle(truncate(smooth_exactly(image / 255.0, sigma) * 255), passes, area)
        return truncate(smooth_exactly(shuffled / 255.0, sigma).clip(0, 1) * 255)

    def fast(self, image: Pixels, parameter: tuple[float, int, int], rng: np.random.Generator) -> Pixels:
        """Blur in single precision; each step is one draw."""
        sigma, reach, iterations = parameter
        height, width = image.shape[:2]
        area = walk(height, width, reach)
        side = np.arange(-reach, reach, dtype=np.int32)
        steps = (side[:, None] * np.int32(width) + side).ravel()
        draws = (rng.integers(0, len(steps), image[area].shape[:2], dtype=np.uint8) for _ in range(iterations))
        shuffled = shuffle(settle(smooth(image, sigma), flat(sigma)), (steps.take(draw) for draw in draws), area)
        return settle(smooth(shuffled, sigma), flat(sigma))


CORRUPTION = GlassBlur()
