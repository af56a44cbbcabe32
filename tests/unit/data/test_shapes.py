"""The embedded scenes: exact, deterministic, and no class of them gives itself away."""

import numpy as np
import pytest

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.sets import shapes
from robustbench_kpca.data.sets.shapes import CLASSES, SPLITS, draw

DIGEST = {
    "val": "3ab2bc0052f93a282111aef6746a5db0850388c184855d09bca6af57f974a50a",
    "train": "ea26a1a15e029ca503817adacdf42c92e113445265ae748e1c07853a7441d4aa",
}


@pytest.fixture(scope="module", params=["val", pytest.param("train", marks=pytest.mark.slow)])
def scenes(request):
    return load_data("shapes", request.param)


@pytest.fixture(scope="module")
def val():
    scenes = load_data("shapes")
    return np.stack([scenes.image(i) for i in range(200)]), np.stack([scenes.mask(i) for i in range(200)])


def test_scenes_are_the_published_ones_and_functions_of_seed_split_and_index(scenes):
    assert scenes.digest() == DIGEST[scenes.split]
    assert len(scenes) == SPLITS[scenes.split]
    for index in (0, 123):
        image, mask = draw(0, scenes.split, index)
        assert np.array_equal(image, scenes.image(index))
        assert np.array_equal(mask, scenes.mask(index))
    image = scenes.image(0)
    for other in (draw(1, scenes.split, 0), draw(0, "other", 0), draw(0, scenes.split, 1)):
        assert not np.array_equal(other[0], image)


def test_no_class_has_more_than_two_fifths_or_less_than_four_per_cent_of_the_pixels(scenes):
    masks = np.stack([scenes.mask(i) for i in range(len(scenes))])
    assert masks.dtype == np.int16
    share = np.bincount(masks.ravel(), minlength=len(CLASSES)) / masks.size
    assert scenes.classes == len(CLASSES) == len(share) == 8
    assert share.max() < 0.4
    assert share.min() > 0.04


def test_scenes_are_cluttered_and_masks_exact(val):
    kinds = [len(np.unique(mask)) for mask in val[1]]
    assert np.mean(kinds) > 5
    assert shapes.disk(frame(8, 20)).sum() == 197  # lattice points in a circle of radius 8 (OEIS A000328)
    # In a shape of plain texture, neighbouring pixels differ by noise; across its border, by colour.
    images, masks = val
    step = np.abs(np.diff(images.astype(int), axis=2)).mean(-1)
    border = np.diff(masks, axis=2) != 0
    assert step[border].mean() > 1.5 * step[~border].mean()
    shifted = np.diff(np.roll(masks, 1, 2), axis=2) != 0
    assert step[border].mean() > 1.3 * step[shifted & ~border].mean()


def frame(radius: int, side: int, turn: tuple[int, int, int] = (1, 0, 1)) -> shapes.Grid:
    a, b, n = turn
    y, x = np.mgrid[-side : side + 1, -side : side + 1]
    return shapes.Grid(a * x + b * y, a * y - b * x, n * radius)


AREAS = {"disk": np.pi, "square": 9 / 4, "triangle": 5 / 2, "ring": 3 * np.pi / 4, "cross": 20 / 9, "bar": 2}


@pytest.mark.parametrize("turn", shapes.TURNS)
@pytest.mark.parametrize("name", shapes.OUTLINES)
def test_an_outline_has_its_area_however_it_is_turned(name, turn):
    assert turn[0] ** 2 + turn[1] ** 2 == turn[2] ** 2
    area = shapes.OUTLINES[name](frame(300, 480, turn)).sum() / 300**2
    assert area == pytest.approx(AREAS[name], rel=0.01)


def test_turned_pictures_and_colours_of_classes(val):
    for outline in shapes.OUTLINES.values():
        upright = outline(frame(12, 20))
        assert np.array_equal(outline(frame(12, 20, (0, 1, 1))), np.rot90(upright, -1))
    images, masks = val
    pixels = images.reshape(-1, 3).astype(np.float32)[::37]
    assert nearest_mean_accuracy(pixels, masks.ravel()[::37]) < 0.5
    levels = (images.astype(np.int64) // 32 * [64, 8, 1]).sum(-1).ravel()  # the best any table of colours can do
    table = np.zeros((512, len(CLASSES)), np.int64)
    np.add.at(table, (levels, masks.ravel()), 1)
    assert table.max(1).sum() / masks.size < 0.6


def nearest_mean_accuracy(features: np.ndarray, labels: np.ndarray) -> float:
    """Mean class accuracy of the nearest class mean, fitted to the very pixels it is scored on."""
    means = np.stack([features[labels == label].mean(0) for label in range(len(CLASSES))])
    nearest = ((features[:, None] - means) ** 2).sum(2).argmin(1)
    return float(np.mean([(nearest[labels == label] == label).mean() for label in range(len(CLASSES))]))


@pytest.mark.parametrize(("source", "split"), [("shapes:folder", "val"), ("shapes", "test")])
def test_what_shapes_has_not(source, split):
    with pytest.raises(BadInputError):
        load_data(source, split)
