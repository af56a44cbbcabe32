"""Bundled: generated scenes with masks, 64 x 64, of textured shapes of six kinds on two kinds of ground.

A scene is a function of (seed, split, index) only, in integer arithmetic on one random stream, so it is the same on
every machine. Two grounds, `meadow` and `water`, meet along a line. Up to seven rotated shapes are drawn on them, one
over the other; at least half of each shape stays visible. Masks are exact: every pixel belongs to one class.

Colour and texture are random. Each object has one of three colours out of eight, and every colour is shared by three
classes, so that colour alone does not determine the class. The texture is that of the class with probability 19/20,
else any of the eight. Texture is the easiest feature to learn, and blur and noise remove it first; outline and colour
remain.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.scenes import ArrayScenes, Mask, Pixels
from robustbench_kpca.data.sets._drawing import COLOURS, OUTLINES, SIZE, TEXTURES, Grid, ground, paint

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
    """Return `val` (the default; 200 scenes) or `train` (1,500).

    Raises:
        BadInputError: another split, or a folder is given.

    """
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
