"""Noise and blur: the exact forms are the oracle's to the bit, the fast ones its distribution."""

import io
import re
from functools import cache
from itertools import product

import corruption_checks as check
import cv2
import numpy as np
import patched
import pytest
from PIL import Image
from skimage.util import random_noise

from robustbench_kpca.corruptions import CORRUPTIONS, _motion, _zoom, corrupt, glass_blur, zoom_blur
from robustbench_kpca.corruptions.shared.storage import store

NOISES = ("gaussian_noise", "shot_noise", "speckle_noise", "impulse_noise")
STEADY = ("gaussian_blur", "defocus_blur", "zoom_blur")  # they draw nothing
BLURS = (*STEADY, "motion_blur", "glass_blur")
SEEDED = (*NOISES[:3], *BLURS)  # impulse_noise cannot be seeded through the oracle
PICTURES = check.pictures()
FIRST = [severity if severity == 1 else pytest.param(severity, marks=pytest.mark.slow) for severity in range(1, 6)]
LARGE = ("224", "flower")


@pytest.mark.parametrize("name", SEEDED)
def test_exact_is_bit_equal_to_the_oracle(name):
    """Large photographs at one severity each, not under glass, which the oracle needs 0.6 s for."""
    for picture, image in PICTURES.items():
        large = picture in LARGE
        for severity in () if large and name == "glass_blur" else (4,) if large else check.SEVERITIES:
            theirs = check.reference(name, image, severity, seed=severity)
            assert np.array_equal(check.exactly(name, image, severity, seed=severity), theirs), (picture, severity)


CIFAR = {
    "gaussian_noise": ("[.08, .12, 0.18, 0.26, 0.38]", "[0.04, 0.06, .08, .09, .10]"),
    "shot_noise": ("[60, 25, 12, 5, 3]", "[500, 250, 100, 75, 50]"),
    "speckle_noise": ("[.15, .2, 0.35, 0.45, 0.6]", "[.06, .1, .12, .16, .2]"),
    "gaussian_blur": ("[1, 2, 3, 4, 6]", "[.4, .6, 0.7, .8, 1]"),
    "glass_blur": (
        "[(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)]",
        "[(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)]",
    ),
    "defocus_blur": (
        "[(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)]",
        "[(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)]",
    ),
    "motion_blur": ("[(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)]", "[(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)]"),
    "zoom_blur": (
        "1.11, 0.01)|1.16, 0.01)|1.21, 0.02)|1.26, 0.02)|1.31, 0.03)",
        "1.06, 0.01)|1.11, 0.01)|1.16, 0.01)|1.21, 0.01)|1.26, 0.01)",
    ),
}
"""Parameters in the oracle's source, and those of the script that made CIFAR-10-C."""


def with_cifar_parameters(name):
    """The oracle's function with the other parameters written into its source, all at once."""
    text = patched.source().read_text("utf-8")
    start = text.index(f"\ndef {name}(")
    body = text[start : text.index("\n\n\n", start)]
    lists = [side.split("|") for side in CIFAR[name]]
    changes = {"multichannel=True": "channel_axis=-1", **dict(zip(*lists, strict=True))}
    assert all(before in body for before in lists[0])
    body = re.sub("|".join(map(re.escape, changes)), lambda found: changes[found[0]], body)
    scope = dict(vars(patched.imagecorruptions()))
    exec(body, scope)
    return scope[name]


@pytest.mark.parametrize("name", CIFAR)
def test_exact_is_bit_equal_with_the_parameters_of_cifar_10_c(name, monkeypatch):
    monkeypatch.setattr(patched.imagecorruptions(), name, with_cifar_parameters(name))
    for image in (PICTURES["32"], PICTURES["noise"], PICTURES["white"]):
        for severity in check.SEVERITIES:
            ours = check.exactly(name, image, severity, severity, "cifar_c")
            assert np.array_equal(ours, check.reference(name, image, severity, severity))


def scikit_image(image, amount, seed):
    """What the oracle does for impulse noise, with a seed of scikit-image's own generator."""
    return np.uint8(np.clip(random_noise(image / 255.0, mode="s&p", amount=amount, rng=seed), 0, 1) * 255)


def test_impulse_noise_draws_in_the_order_of_scikit_image():
    image, amount = PICTURES["wide"], 0.17

    class Modern(np.random.RandomState):
        """The legacy interface to the generator that scikit-image makes of a seed."""

        def random_sample(self, size=None):
            return modern.random(size)

    modern = np.random.default_rng(5)
    ours = CORRUPTIONS.get("impulse_noise").exact(image, amount, Modern(0))
    assert np.array_equal(ours, scikit_image(image, amount, 5))


@pytest.mark.parametrize("profile", ["imagecorruptions", "cifar_c"])
def test_any_size_will_do(profile):
    random = np.random.default_rng(0)
    for height, width in [(1, 1), (2, 1), (3, 3), (4, 9), (1, 40), (17, 16)]:
        image = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        for name in (*SEEDED, "impulse_noise"):
            for severity in (1, 5):
                for form in (check.exactly, check.fast):
                    out = form(name, image, severity, 1, profile)
                    assert out.shape == image.shape
                    assert out.dtype == np.uint8
                if name in SEEDED and profile == "imagecorruptions":
                    exact = check.exactly(name, image, severity, 1)
                    assert np.array_equal(exact, check.reference(name, image, severity, 1))


SHARE, FEW = 0.001, 5  # of the values, and for small pictures, may differ, by 1 level
SHARE_OF_MOTION = 0.003  # in a smooth sky the tail of the weights decides, beyond the reach of single precision


def close(ours, theirs, share=SHARE):
    count, most = check.differing(ours, theirs)
    return most <= 1 and count <= share * ours.size + FEW


@pytest.mark.parametrize("profile", ["imagecorruptions", "cifar_c"])
@pytest.mark.parametrize("name", STEADY)
def test_fast_blurs_differ_by_a_level_in_few_places(name, profile):
    for image in (PICTURES[picture] for picture in ("wide", "32", "white", "noise")):
        for severity in check.SEVERITIES:
            exact = check.exactly(name, image, severity, 0, profile)
            assert close(check.fast(name, image, severity, 0, profile), exact)


class Legacy(np.random.RandomState):
    def uniform(self, low, high):
        assert (low, high) == (-45, 45)
        return self.angle


class Modern(np.random.Generator):
    def uniform(self, low, high):
        assert (low, high) == (-45, 45)
        return self.angle


def at_angle(form, rng, image, parameter, angle):
    rng.angle = angle
    return getattr(CORRUPTIONS.get("motion_blur"), form)(image, parameter, rng)


@pytest.mark.parametrize("profile", ["imagecorruptions", "cifar_c"])
def test_fast_motion_blur_is_the_exact_one_at_every_angle(profile):
    legacy, modern = Legacy(0), Modern(np.random.PCG64(0))
    for severity, angle in product(check.SEVERITIES, (-45.0, -31.7, 0.0, 4.2, 26.6)):
        parameter = check.parameter_of("motion_blur", severity, profile)
        for image in (PICTURES["wide"], PICTURES["noise"]):
            exact = at_angle("exact", legacy, image, parameter, angle)
            assert close(at_angle("fast", modern, image, parameter, angle), exact, SHARE_OF_MOTION)


DRAWS = 60
SIDES = {"glass_blur": 64, "impulse_noise": 224}
"""Of the picture; else 96. Impulses are rare: at the first severity, 5 % of them show in large pictures only."""


def clean(name):
    """A photograph with a corner in black and one in white."""
    side = SIDES.get(name, 96)
    image = check.photograph(side, side)
    image[: side // 8, : side // 8], image[-side // 8 :, -side // 8 :] = 0, 255
    return image


@cache
def exact_sample(name, severity, profile="imagecorruptions"):
    """Statistics of the exact form, which is the oracle's; of the oracle itself where it cannot be seeded."""
    image, parameter = clean(name), check.parameter_of(name, severity, profile)
    if name == "impulse_noise":
        return check.sample(lambda seed: scikit_image(image, parameter, seed), image, DRAWS)
    return check.sample(lambda seed: check.exactly(name, image, severity, seed, profile), image, DRAWS)


def excess(name, severity, draw, profile="imagecorruptions"):
    """Largest |t| over its limit, of pictures `draw(image, seed)`."""
    image = clean(name)
    own = check.sample(lambda seed: draw(image, seed), image, DRAWS)
    return np.abs(check.z_scores(own, exact_sample(name, severity, profile))).max() / check.limit(DRAWS)


CELLS = [
    (severity, profile) if (severity, profile) in ((1, "imagecorruptions"), (5, "cifar_c"))
    else pytest.param(severity, profile, marks=pytest.mark.slow)
    for severity, profile in product(check.SEVERITIES, ("imagecorruptions", "cifar_c"))
]  # fmt: skip


@pytest.mark.parametrize(("severity", "profile"), CELLS)
@pytest.mark.parametrize("name", [*NOISES, "glass_blur"])
def test_fast_has_the_exact_distribution(name, severity, profile):
    assert excess(name, severity, lambda image, seed: check.fast(name, image, severity, seed, profile), profile) < 1


@pytest.mark.parametrize("severity", FIRST)
def test_exact_impulse_noise_has_the_distribution_of_scikit_image(severity):
    draw = lambda image, seed: check.exactly("impulse_noise", image, severity, seed)  # noqa: E731
    assert excess("impulse_noise", severity, draw) < 1


def test_noise_is_bound_to_no_neighbour():
    image = np.full((256, 256, 3), 128, np.uint8)
    noise = check.fast("gaussian_noise", image, 1, 0) - 128.0
    for axis, step in [(0, 1), (0, 128), (1, 1), (2, 1)]:
        correlation = np.mean(noise * np.roll(noise, step, axis)) / np.mean(noise**2)
        assert abs(correlation) < 5 / np.sqrt(noise.size)  # five standard errors


@pytest.mark.parametrize("name", [*NOISES, *BLURS])
def test_a_picture_is_its_seed_s_whatever_threads_and_other_draws(name):
    images, threads = PICTURES["wide"][None], cv2.getNumThreads()
    first = corrupt(images, name, 3, seed=7)
    try:
        cv2.setNumThreads(3)
        cv2.setRNGSeed(99)
        assert np.array_equal(corrupt(images, name, 3, seed=7), first)
    finally:
        cv2.setNumThreads(threads)
    others = [corrupt(images, name, 3, seed=8), corrupt(images, name, 3, seed=7, ids=["other"])]
    assert all(np.array_equal(other, first) == (name in STEADY) for other in others)


def saved(image, **options):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=85, **options)
    return np.array(Image.open(file))


def test_stored_pictures_are_those_of_an_optimised_jpeg_with_half_the_chroma():
    for picture in PICTURES.values():
        for image in (picture, check.fast("gaussian_noise", picture, 5, 0)):
            assert np.array_equal(store(image), saved(image, optimize=True))
    image = check.fast("gaussian_noise", PICTURES["224"], 5, 0)
    assert check.differing(store(image), saved(image, subsampling=0))[1] > 20


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(48, 64, 3), (224, 97, 1), (2, 3, 3), (1, 1, 3)])
def test_zooming_is_scipy_s(shape, dtype):
    layer = np.random.default_rng(0).random(shape).astype(dtype)
    for factor in (*np.arange(1, 1.31, 0.01), 1.5, 2, 2.5, 3, 4, 4.5):
        theirs = patched.imagecorruptions().clipped_zoom(layer, factor)
        ours = _zoom.zoom_exactly(layer, factor)
        assert ours.dtype == dtype
        assert np.array_equal(ours, theirs)
        if dtype == np.float32:
            assert np.abs(_zoom.zoom(layer, factor).reshape(theirs.shape) - theirs).max() < 1e-4


def test_trimming_centrally_or_from_the_top_left_is_the_same():
    for profile in ("imagenet_c", "cifar_c"):
        for factor in {z for zooms in zoom_blur.ZoomBlur.parameters[profile] for z in zooms}:
            for length in range(1, 1025):
                assert 0 <= _zoom.middle(length, factor)[2] - length <= 1  # so (enlarged - length) // 2 is 0


@pytest.mark.parametrize("shape", [(48, 64), (40, 33, 3), (5, 3), (1, 1)])
def test_motion_is_the_oracle_s(shape):
    layer = np.random.default_rng(0).random(shape)
    for radius, sigma in [(10, 3), (12, 8), (20, 15)]:
        for angle in (-135, -101.3, -90, -45, -20.5, 0, 33.3, 45, 90, 180):
            theirs = patched.imagecorruptions()._motion_blur(layer, radius, sigma, angle)
            taps = _motion.line(radius, sigma, angle, *shape[:2])
            assert np.array_equal(_motion.blur_exactly(layer, taps), theirs)
            assert np.abs(_motion.blur(layer, taps) - theirs).max() < 1e-6


def test_glass_follows_pointers_as_a_walk_would():
    random, (height, width, reach) = np.random.default_rng(0), (23, 17, 4)
    area = glass_blur.walk(height, width, reach)
    steps = random.integers(-reach, reach, (2, height, width))[:, area[0], area[1]]
    walked = np.arange(height * width).reshape(height, width)
    for row in range(height - reach, reach, -1):
        for column in range(width - reach, reach, -1):
            down, right = steps[:, row - reach - 1, column - reach - 1]
            walked[row, column] = walked[row + down, column + right]
    flat = (steps[0] * width + steps[1]).astype(np.int32)
    assert np.array_equal(glass_blur.follow(flat, area, height, width), walked.ravel())
