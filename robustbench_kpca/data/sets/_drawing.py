"""Outlines and textures of drawn shapes, in integer arithmetic, so that a drawing is the same on every machine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIZE = 64
TURNS = ((1, 0, 1), (4, 3, 5), (3, 4, 5), (12, 5, 13), (5, 12, 13), (15, 8, 17), (8, 15, 17), (21, 20, 29))
"""Rotations whose cosine a / n and sine b / n are rational: (a, b, n) with a^2 + b^2 = n^2."""
COLOURS = (
    (190, 70, 60), (200, 140, 60), (170, 180, 70), (80, 160, 80),
    (70, 160, 170), (70, 90, 190), (140, 80, 180), (190, 90, 140),
)  # fmt: skip
Levels = NDArray[np.int64]
Area = NDArray[np.bool_]
_ROWS, _COLUMNS = np.mgrid[:SIZE, :SIZE].astype(np.int64)


@dataclass(frozen=True)
class Grid:
    """Pixel coordinates in the rotated frame of a shape, multiplied by n, and its radius times n.

    With (x, y) relative to the shape's centre, u = a x + b y and v = a y - b x: distances in pixels are u / n, v / n.
    """

    u: Levels
    v: Levels
    radius: int

    @classmethod
    def turned(cls, rng: np.random.Generator, column: int, row: int, radius: int) -> "Grid":
        """Return the frame centred at a pixel, rotated by one of 32 random angles."""
        a, b, n = TURNS[int(rng.integers(len(TURNS)))]
        for _ in range(int(rng.integers(4))):
            a, b = -b, a
        x, y = _COLUMNS - column, _ROWS - row
        return cls(a * x + b * y, a * y - b * x, n * radius)


def disk(grid: Grid) -> Area:
    """u^2 + v^2 <= r^2."""
    return grid.u**2 + grid.v**2 <= grid.radius**2


def square(grid: Grid) -> Area:
    """|u|, |v| <= 3/4 r."""
    return 4 * np.maximum(abs(grid.u), abs(grid.v)) <= 3 * grid.radius


def triangle(grid: Grid) -> Area:
    """Height 2 r, base 5/2 r."""
    return (grid.v <= grid.radius) & (8 * abs(grid.u) <= 5 * (grid.v + grid.radius))


def ring(grid: Grid) -> Area:
    """Disk of radius r without the disk of radius r / 2."""
    return disk(grid) & (4 * (grid.u**2 + grid.v**2) > grid.radius**2)


def cross(grid: Grid) -> Area:
    """Two bars of length 2 r and width 2/3 r."""
    u, v = abs(grid.u), abs(grid.v)
    return (np.maximum(u, v) <= grid.radius) & (3 * np.minimum(u, v) <= grid.radius)


def bar(grid: Grid) -> Area:
    """Length 3 r, width 2/3 r."""
    return (2 * abs(grid.u) <= 3 * grid.radius) & (3 * abs(grid.v) <= grid.radius)


OUTLINES: Mapping[str, Callable[[Grid], Area]] = {
    "disk": disk,
    "square": square,
    "triangle": triangle,
    "ring": ring,
    "cross": cross,
    "bar": bar,
}


def ground(rng: np.random.Generator) -> Levels:
    """Divide the scene by a line through its middle third; return 0 on one side and 1 on the other."""
    column, row = rng.integers(SIZE // 3, 2 * SIZE // 3, 2)
    return (Grid.turned(rng, int(column), int(row), 1).u > 0).astype(np.int64)


def _signs(high: Area) -> Levels:
    return np.where(high, 4, -4)


def _speckle(rng: np.random.Generator) -> Levels:
    return rng.integers(-4, 5, (SIZE, SIZE))


def _patches(rng: np.random.Generator) -> Levels:
    coarse = rng.integers(-4, 5, (SIZE // 4, SIZE // 4))
    return coarse.repeat(4, 0).repeat(4, 1)


def _stripes(rng: np.random.Generator) -> Levels:
    frame, width = Grid.turned(rng, 0, 0, 1), int(rng.integers(2, 4))
    return _signs(frame.u // (width * frame.radius) % 2 == 1)


def _checks(rng: np.random.Generator) -> Levels:
    side = int(rng.integers(2, 5))
    return _signs((_ROWS // side + _COLUMNS // side) % 2 == 1)


def _dots(rng: np.random.Generator) -> Levels:
    step = int(rng.integers(4, 6))
    return _signs((_ROWS % step < 2) & (_COLUMNS % step < 2))


def _plain(rng: np.random.Generator) -> Levels:
    return np.full((SIZE, SIZE), int(rng.integers(-4, 5)))


def _waves(rng: np.random.Generator) -> Levels:
    frame = Grid.turned(rng, 0, 0, 1)
    return abs(frame.u // frame.radius % 16 - 8) - 4


def _mesh(rng: np.random.Generator) -> Levels:
    step = int(rng.integers(4, 6))
    return _signs((_ROWS % step == 0) | (_COLUMNS % step == 0))


TEXTURES: Mapping[str, Callable[[np.random.Generator], Levels]] = {
    "speckle": _speckle, "waves": _waves, "plain": _plain, "checks": _checks,
    "stripes": _stripes, "dots": _dots, "patches": _patches, "mesh": _mesh,
}  # fmt: skip
"""Each returns levels from -4 to 4, int64 (64, 64)."""


def paint(rng: np.random.Generator, levels: Levels, colour: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Shift a colour at random, add the texture with a random contrast, and add noise to every value."""
    base = np.array(colour) + rng.integers(-25, 26, 3)
    contrast = int(rng.integers(6, 13))
    noise = rng.integers(-10, 11, (SIZE, SIZE, 3))
    return (base + contrast * levels[..., None] + noise).clip(0, 255).astype(np.uint8)
