"""Snow, frost, fog, spatter, elastic and digital corruptions, held against imagecorruptions 1.1.2 and closed forms."""

import warnings
from itertools import product

import cv2
import numpy as np
import pytest
import skimage.color
from corruption_checks import (
    SEVERITIES,
    differing,
    disagreement,
    parameter_of,
    photograph,
    photographs,
    pictures,
    reference,
    statistics,
)
from patched import source
from scipy.ndimage import gaussian_filter, map_coordinates

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.randomness import generator
from robustbench_kpca.corruptions import CORRUPTIONS, corrupt
from robustbench_kpca.corruptions._hsv import recolour
from robustbench_kpca.corruptions._ice import PANES, ice
from robustbench_kpca.corruptions._photographs import SHA256
from robustbench_kpca.corruptions._photographs import photograph as frost_photograph
from robustbench_kpca.corruptions._plasma import plasma, side_for
from robustbench_kpca.corruptions.elastic_transform import _field, _smooth

FROST = str(source().with_name("frost"))
RANDOM = ("elastic_transform", "fog", "frost", "snow", "spatter")
FIXED = ("brightness", "contrast", "jpeg_compression", "pixelate", "saturate")
PROFILES = ("imagecorruptions", "imagenet_c", "cifar_c")
PICTURES = pictures()


def member(name):
    corruption = CORRUPTIONS.get(name)
    return corruption.with_pictures(FROST) if name == "frost" else corruption


def exactly(name, image, severity, seed, profile="imagecorruptions"):
    """Our exact form with the legacy generator of that seed."""
    return member(name).exact(image, parameter_of(name, severity, profile), np.random.RandomState(seed))


@pytest.mark.parametrize("name", RANDOM + FIXED)
def test_exact_is_the_reference_to_the_bit(name):
    """Large photographs at one severity."""
    for picture, image in PICTURES.items():
        for severity in (4,) if picture in ("224", "flower") else SEVERITIES:
            theirs = reference(name, image.copy(), severity, seed=severity)
            assert differing(exactly(name, image, severity, severity), theirs) == (0, 0), (picture, severity)


@pytest.mark.parametrize("name", RANDOM)
def test_exact_is_the_reference_on_tiny_images(name):
    for shape in ((3, 40), (40, 3), (4, 4), (16, 16)):
        image = np.random.default_rng(1).integers(0, 256, (*shape, 3), dtype=np.uint8)
        theirs = reference(name, image.copy(), 5, seed=1)
        assert differing(exactly(name, image, 5, 1), theirs) == (0, 0), shape


def test_no_drop_leaves_the_picture_where_the_reference_divides_by_zero():
    image = np.random.default_rng(0).integers(0, 256, (3, 3, 3), dtype=np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dry = [seed for seed in range(8) if reference("spatter", image.copy(), 1, seed).max() == 0]
    assert dry, "not a number, stored as 0"
    for seed in dry:
        assert np.array_equal(exactly("spatter", image, 1, seed), image)


SMALL = ("wide", "32", "black", "white", "noise")


@pytest.mark.parametrize("name", FIXED)
def test_without_randomness_fast_is_exact(name):
    for picture, profile, severity in product(SMALL, PROFILES, SEVERITIES):
        image = PICTURES[picture]
        fast = corrupt(image[None], name, severity, profile=profile)[0]
        assert np.array_equal(fast, exactly(name, image, severity, 0, profile)), (picture, profile, severity)


class SameNumbers(np.random.Generator):
    """A generator that gives a fast form the numbers that the exact one draws after the same seed."""

    def __init__(self, seed, image):
        super().__init__(np.random.PCG64(0))
        self.legacy, self.size = np.random.RandomState(seed), image.shape[:2]

    def random(self, shape, dtype):
        return self.legacy.random_sample(shape).astype(dtype)

    def uniform(self, *limits):
        return self.legacy.uniform(*limits)

    def integers(self, high):
        return np.array([self.legacy.randint(0, limit) for limit in np.atleast_1d(high)]).reshape(np.shape(high))

    def standard_normal(self, shape, dtype):
        """Only the middle, where the fast form of snow asks for no more."""
        top, left = ((full - part) // 2 for full, part in zip(self.size, shape, strict=True))
        numbers = self.legacy.standard_normal(self.size)
        return numbers[top : top + shape[0], left : left + shape[1]].astype(dtype)


# Share of values that differ at all, and by more than a level (a flake or drop at its threshold), of any one picture.
TOLERANCE = {
    "elastic_transform": (0.002, 0),
    "fog": (0.0005, 0),
    "frost": (0.035, 0),
    "snow": (0.004, 0.001),
    "spatter": (0.0005, 0.0001),
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("profile", PROFILES)
def test_fast_is_exact_but_for_rounding_given_the_same_numbers(name, profile):
    few, fewer = TOLERANCE[name]
    for image in (PICTURES[picture] for picture in SMALL):
        if name == "frost" and profile == "cifar_c":
            image = image[:62, :62].copy()  # its pictures are that small
        for severity in SEVERITIES:
            parameter = parameter_of(name, severity, profile)
            fast = member(name).fast(image, parameter, SameNumbers(severity, image))
            gap = np.abs(fast.astype(int) - exactly(name, image, severity, severity, profile))
            assert (gap > 0).mean() <= few
            assert (gap > 1).mean() <= fewer


def scalars(parameter):
    """(index, value) of every number of a parameter that scales something."""
    return [
        (i, value)
        for i, value in enumerate(parameter)
        if isinstance(value, float | int) and value and value is not True
    ]


@pytest.mark.parametrize("name", RANDOM)
def test_that_test_sees_every_parameter_moved_by_5_percent(name):
    few, _ = TOLERANCE[name]
    image, severity = PICTURES["flower"], 5
    parameter = parameter_of(name, severity)
    exact = exactly(name, image, severity, severity)
    for index, value in scalars(parameter):
        if name == "snow" and index == 4:
            continue  # the radius is a whole number of pixels
        moved = [*parameter]
        moved[index] = 1.05 * value
        changed = type(parameter)(*moved) if hasattr(parameter, "_fields") else tuple(moved)
        fast = member(name).fast(image, changed, SameNumbers(severity, image))
        assert (fast != exact).mean() > 2 * few, index


@pytest.mark.parametrize("severity", [*(pytest.param(s, marks=pytest.mark.slow) for s in (1, 3)), 5])
@pytest.mark.parametrize("name", RANDOM)
def test_fast_has_the_distribution_of_the_reference(name, severity):
    clean, parameter = photograph(64, 80), parameter_of(name, severity)

    def ours(seed):
        return member(name).fast(clean, parameter, generator(seed))

    def theirs(seed):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return reference(name, clean.copy(), severity, seed)

    assert disagreement(ours, theirs, clean, draws=100) <= 1


@pytest.mark.parametrize("name", RANDOM + FIXED)
def test_threads_change_nothing(name):
    before = cv2.getNumThreads()
    made = []
    try:
        for threads in (1, 4):
            cv2.setNumThreads(threads)
            pair = corrupt(PICTURES["wide"][None], name, 3, seed=5), exactly(name, PICTURES["wide"], 3, 5)[None]
            made.append(np.concatenate(pair))
    finally:
        cv2.setNumThreads(before)
    assert np.array_equal(*made)


@pytest.mark.parametrize(
    ("change", "channel", "of"),
    [
        ({"lift": 0.3}, 2, lambda value: value + 0.3),
        ({"gain": 0.1}, 1, lambda value: value * 0.1),
        ({"gain": 2.0}, 1, lambda value: value * 2),
        ({"gain": 20.0, "offset": 0.2}, 1, lambda value: value * 20 + 0.2),
    ],
)
def test_recolouring_is_scikit_image_to_the_bit(change, channel, of):
    levels = np.array([0, 1, 2, 100, 127, 128, 253, 254, 255], np.uint8)
    corners = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(27, 27, 3)
    any_colour = np.random.default_rng(0).integers(0, 256, (300, 301, 3), dtype=np.uint8)
    for image in (corners, any_colour):
        hsv = skimage.color.rgb2hsv(image / 255.0)
        hsv[..., channel] = np.clip(of(hsv[..., channel]), 0, 1)
        assert np.array_equal(recolour(image, **change), (skimage.color.hsv2rgb(hsv) * 255).astype(np.uint8))


def test_contrast_where_the_rounding_of_the_mean_decides():
    for low, high in ((0, 255), (10, 20), (7, 7), (100, 200)):
        image = np.full((31, 57, 3), low, np.uint8)
        image[::2] = high
        for severity in SEVERITIES:
            theirs = reference("contrast", image.copy(), severity, 0)
            assert differing(exactly("contrast", image, severity, 0), theirs) == (0, 0)


def test_plasma_and_pixelate_are_means():
    heights = plasma(64, 2.0, np.random.RandomState(0).random_sample)
    assert heights.shape == (64, 64)
    assert (heights.min(), heights.max()) == (0, 1)
    smooth, rough = (plasma(64, decay, np.random.RandomState(0).random_sample) for decay in (3.0, 1.4))
    assert np.abs(np.diff(smooth)).mean() < np.abs(np.diff(rough)).mean()
    assert [side_for(*size) for size in ((1, 1), (4, 4), (5, 2), (224, 224), (257, 3))] == [4, 4, 8, 256, 512]
    image = PICTURES["224"]
    made = corrupt(image[None], "pixelate", 5)[0]
    blocks = image.reshape(56, 4, 56, 4, 3).mean((1, 3))
    assert np.abs(made[::4, ::4] - blocks).max() <= 1  # Pillow rounds twice: along rows, then columns
    assert np.array_equal(made, np.repeat(np.repeat(made[::4, ::4], 4, 0), 4, 1))


@pytest.mark.parametrize("sigma", [(2.24, 2.24), (0.5, 3.0), (19.5, 19.5), (170.8, 170.8), (0.0, 0.0)])
def test_smoothing_is_the_truncated_gaussian_with_mirrored_borders(sigma):
    noise = np.random.default_rng(0).random((61, 84))
    want = gaussian_filter(noise, sigma, mode="reflect", truncate=3)
    assert np.abs(_smooth(noise.astype(np.float32), sigma) - want).max() < 2e-6


@pytest.mark.parametrize(
    ("profile", "published"),
    [("imagenet_c", [1.05, 4.38, 0.84, 1.19, 2.02]), ("imagecorruptions", [1.04, 1.36, 1.77, 2.09, 2.53])],
)
def test_elastic_displacements_are_as_large_as_measured_on_the_originals(profile, published):
    for severity, pixels in zip(SEVERITIES, published, strict=True):
        warp = parameter_of("elastic_transform", severity, profile)
        fields = [_field(224, 224, warp, generator(seed)) for seed in range(40 if warp.sigma > 100 else 8)]
        spread = 0.35 if warp.sigma > 10 else 0.05  # a smooth field is nearly one number per picture
        assert np.sqrt(np.mean(np.square(fields))) == pytest.approx(pixels, rel=spread)


def test_the_affine_map_moves_three_points_by_the_numbers_drawn():
    image = cv2.GaussianBlur(photograph(90, 120), (0, 0), 2)
    warp = parameter_of("elastic_transform", 1, "cifar_c")._replace(move=5.0)
    made = member("elastic_transform").exact(image, warp, np.random.RandomState(3))
    reach, y, x = 30, 45, 60
    points = np.array([[y + reach, x + reach], [y + reach, x - reach], [y - reach, x - reach]], float)
    moved = points + np.random.RandomState(3).uniform(-5, 5, (3, 2))
    backwards = np.linalg.solve(np.c_[moved, np.ones(3)], points).T  # the released code takes (row, column) for (x, y)
    rows, columns = np.mgrid[:90, :120]
    right, down = np.einsum("ij,jhw->ihw", backwards, np.stack([columns, rows, np.ones_like(rows)]))
    inside = (right > 1) & (right < 118) & (down > 1) & (down < 88)
    for channel in range(3):
        want = map_coordinates(image[..., channel].astype(float), [down, right], order=1, mode="mirror")
        assert np.abs(made[..., channel] - want)[inside].max() < 2


def test_photographs_of_frost_are_asked_for_whole(tmp_path):
    with pytest.raises(BadInputError, match="folder") as failure:
        corrupt(PICTURES["32"][None], "frost", 1, mode="exact")
    assert "\n" not in str(failure.value)
    for shape in ((400, 300), (330, 700), (700, 1000)):
        image = np.resize(photographs()[0], (*shape, 3))
        assert differing(exactly("frost", image, 3, 2), reference("frost", image.copy(), 3, 2)) == (0, 0)
    with pytest.raises(BadInputError, match=r"frost1\.png"):
        frost_photograph(str(tmp_path / "nowhere"), 0)
    (tmp_path / "frost1.png").write_bytes(b"frost")
    with pytest.raises(BadInputError, match="is not the original"):
        frost_photograph(str(tmp_path), 0)
    assert [*SHA256] == ["frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg"]


def test_our_ice_is_repeatable_and_drawn_evenly():
    assert np.array_equal(ice(0), ice.__wrapped__(0))
    black = np.zeros((200, 200, 3), np.uint8)
    means = np.array([[ice(index).mean((0, 1))] for index in range(5)])[:, 0] * 0.75
    drawn = corrupt(np.repeat(black[None], 300, 0), "frost", 5).mean((1, 2))
    nearest = np.abs(drawn[:, None] - means).sum(-1).argmin(1)
    counts = np.bincount(nearest, minlength=5)
    counts[1:3] = counts[1:3].sum() / 2  # two panes of the same kind
    assert (np.abs(counts - 60) < 4 * np.sqrt(300 * 0.2 * 0.8)).all()


@pytest.mark.parametrize("index", range(5))
def test_our_ice_resembles_the_photograph(index):
    ours, theirs = ice(index), frost_photograph(FROST, index)
    assert ours.shape == theirs.shape == (*PANES[index].shape, 3)
    assert np.abs(ours.mean((0, 1)) - theirs.mean((0, 1))).max() < 2
    assert np.abs(ours.std((0, 1)) / theirs.std((0, 1)) - 1).max() < 0.15
    variation = [statistics(picture, picture)[4].mean() for picture in (ours, theirs)]
    assert 0.65 < variation[0] / variation[1] < 1.35


@pytest.mark.parametrize(
    ("name", "profile", "severity", "refused", "works"),
    [
        ("pixelate", "imagecorruptions", 5, (3, 9), (4, 4)),
        ("pixelate", "cifar_c", 3, (1, 1), (2, 2)),
        ("elastic_transform", "imagenet_c", 1, (2, 9), (3, 3)),
        ("frost", "imagenet_c", 1, (315, 20), (314, 526)),
        ("frost", "cifar_c", 1, (32, 105), (62, 104)),
    ],
)
@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_sizes_that_cannot_be_corrupted_are_refused_in_one_line(name, profile, severity, refused, works, mode):
    def attempt(size):
        return corrupt(np.zeros((1, *size, 3), np.uint8), name, severity, 0, None, mode, profile, FROST)

    with pytest.raises(BadInputError, match=f"{refused[0]} x {refused[1]} pixels") as failure:
        attempt(refused)
    assert "\n" not in str(failure.value)
    assert attempt(works).shape == (1, *works, 3)


@pytest.mark.parametrize("name", [name for name in RANDOM + FIXED if name != "pixelate"])
def test_one_pixel_is_enough(name):
    for mode in ("fast", "exact"):
        assert corrupt(np.full((1, 1, 1, 3), 9, np.uint8), name, 5, mode=mode, frost=FROST).shape == (1, 1, 1, 3)
