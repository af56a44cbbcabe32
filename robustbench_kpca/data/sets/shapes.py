"""Bundled: generated scenes with masks, 64 x 64, of textured shapes of six kinds on two kinds of ground.

A scene is a function of (seed, split, index) only, in integer arithmetic on one random stream, so it is the same on
every machine. Two grounds, `meadow` and `water`, meet along a line. Up to seven rotated shapes are drawn on them, one
over the other; at least half of each shape stays visible. Masks are exact: every pixel belongs to one class.

Colour and texture are random. Each object has one of three colours out of eight, and every colour is shared by three
classes, so that colour alone does not determine the class. The texture is that of the class with probability 19/20,
else any of the eight. Texture is the easiest feature to learn, and blur and noise remove it first; outline and colour
remain.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.scenes import ArrayScenes, Mask, Pixels

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


SPLITS = {"val": 200, "train": 1_500}
GROUNDS = ("meadow", "water")
CLASSES = (*GROUNDS, *OUTLINES)
PALETTE = (
    (50, 120, 60), (50, 90, 180), (225, 75, 65), (240, 190, 60),
    (150, 80, 190), (245, 140, 190), (110, 220, 220), (235, 235, 235),
)  # fmt: skip
SEED = 0
SHAPES = (5, 8)  # range of the number of candidate shapes; some do not fit
RADII = (12, 20)
OWN_TEXTURE, SHARED_COLOURS = (19, 20), 3


def load(request: Request) -> ArrayScenes:
    """Return `val` (the default; 200 scenes) or `train` (1,500)."""
    request.refuse_folder("shapes")
    return _drawn(request.split_of("shapes", list(SPLITS)))


@cache
def _drawn(split: str) -> ArrayScenes:
    scenes = [draw(SEED, split, index) for index in range(SPLITS[split])]
    ids = [f"shapes/{split}/{index:04d}" for index in range(len(scenes))]
    images, masks = zip(*scenes, strict=True)
    palette = np.array(PALETTE, np.uint8)
    return ArrayScenes(images, masks, CLASSES, palette=palette, ids=ids, name="shapes", split=split)


def draw(seed: int, split: str, index: int) -> tuple[Pixels, Mask]:
    """Draw a scene: image, uint8 (64, 64, 3), and mask, int16 (64, 64)."""
    rng = generator(sample_key(seed, f"shapes/{split}", str(index)))
    owner = ground(rng)  # index of the visible object per pixel: 0 and 1 are the grounds
    kinds = rng.permutation(len(GROUNDS)).tolist()
    areas = [0, 0]
    for _ in range(rng.integers(*SHAPES)):
        kind = int(rng.integers(len(OUTLINES)))
        covered = list(OUTLINES.values())[kind](_place(rng))
        over = np.where(covered, len(areas), owner)
        if _all_half_visible(over, [*areas, int(covered.sum())]):
            owner = over
            areas.append(int(covered.sum()))
            kinds.append(len(GROUNDS) + kind)
    image = np.zeros((SIZE, SIZE, 3), np.uint8)
    for thing, kind in enumerate(kinds):
        image[owner == thing] = _look(rng, kind)[owner == thing]
    return image, np.array(kinds, np.int16)[owner]


def _place(rng: np.random.Generator) -> Grid:
    column, row = rng.integers(2, SIZE - 2, 2)
    return Grid.turned(rng, int(column), int(row), int(rng.integers(*RADII)))


def _all_half_visible(owner: NDArray[np.int64], areas: list[int]) -> bool:
    visible = np.bincount(owner.ravel(), minlength=len(areas))
    return bool((2 * visible >= np.array(areas)).all() and visible[:2].min() > 0)


def _look(rng: np.random.Generator, kind: int) -> Pixels:
    often, of = OWN_TEXTURE
    texture = kind if rng.integers(of) < often else int(rng.integers(len(TEXTURES)))
    colour = COLOURS[(kind + int(rng.integers(SHARED_COLOURS))) % len(COLOURS)]
    return paint(rng, list(TEXTURES.values())[texture](rng), colour)
