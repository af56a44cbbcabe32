"""Augmentations of image files against closed forms: each option of `[images]` does what it says, and nothing else."""

import math

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from PIL import Image

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import validate
from robustbench_kpca.training.image_files import ImageFileSource
from robustbench_kpca.training.machine import own_generators, seed_generators
from robustbench_kpca.training.recipe import Recipe

SIDE, COUNT = 32, 24
OFF = {
    "auto_augment": "", "color_jitter": 0.0, "scale": [1.0, 1.0], "hflip": 0.0, "erase": 0.0, "repeats": 1,
    "interpolation": "bicubic", "crop": 0.75, "workers": 0,
}  # fmt: skip
WHOLE_RUN = {
    "title": "x", "model": "symvit_digits", "model_options": {}, "data": "folder", "seed": 0, "epochs": 1,
    "batch_size": 8, "optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0, "warmup_epochs": 0, "smoothing": 0.0,
    "max_shift": 0,
}  # fmt: skip


def folder_of(tmp_path, image):
    for part, count in (("train", COUNT), ("val", 4)):
        for number in range(count):
            name = tmp_path / part / ("ant", "bee")[number % 2] / f"{number:02d}.png"
            name.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image(number)).save(name)
    return tmp_path


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    def image(number):
        return np.random.default_rng(number).integers(0, 256, (40, 48, 3), dtype=np.uint8)

    return folder_of(tmp_path_factory.mktemp("noise"), image)


@pytest.fixture(scope="module")
def grey(tmp_path_factory):
    return folder_of(tmp_path_factory.mktemp("grey"), lambda number: np.full((40, 48, 3), 100, np.uint8))


@pytest.fixture(scope="module")
def ramps(tmp_path_factory):
    """Red grows from left to right, green from top to bottom: colours say from where a pixel comes."""
    rows, columns = np.mgrid[:200, :200].astype(np.uint8)
    image = np.stack([columns, rows, np.zeros_like(rows)], -1)
    return folder_of(tmp_path_factory.mktemp("ramps"), lambda number: image)


def epoch(folder, number=0, **settings):
    """One epoch as {number of a file: its images} of floats in [0, 255]."""
    recipe = validate(Recipe, WHOLE_RUN | {"images": OFF | settings}, "recipe")
    with own_generators():
        seed_generators(1)
        source = ImageFileSource(recipe, folder, Accelerator(cpu=True))
        seen = {}
        for batch in source.epoch(number):
            for x, index in zip(batch.x, batch.ids, strict=True):
                seen.setdefault(int(source.train.reader.filename(int(index))[-6:-4]), []).append(255 * x)
    return seen


def centred(folder, number, part="train"):
    """Pillow's own: the short side becomes floor(32 / 0.75) = 42 pixels, then the middle 32 x 32 are cut out."""
    with Image.open(folder / part / ("ant", "bee")[number % 2] / f"{number:02d}.png") as image:
        width, height = image.size
        scale = 42 / min(width, height)
        resized = image.resize((int(width * scale), int(height * scale)), Image.Resampling.BICUBIC)
    left, top = round((resized.width - SIDE) / 2), round((resized.height - SIDE) / 2)
    return torch.tensor(np.asarray(resized)[top : top + SIDE, left : left + SIDE]).permute(2, 0, 1).float()


def test_without_augmentation_and_held_out_images_are_resized_and_cropped(noise):
    seen = epoch(noise)
    assert sorted(seen) == list(range(COUNT))
    for number, (image,) in seen.items():
        assert torch.allclose(image, centred(noise, number), atol=1e-3)
    settings = {"hflip": 1.0, "erase": 1.0, "auto_augment": "rand-m9", "scale": [0.1, 0.2], "repeats": 3}
    recipe = validate(Recipe, WHOLE_RUN | {"images": OFF | settings}, "recipe")
    source = ImageFileSource(recipe, noise, Accelerator(cpu=True))
    with own_generators():
        ((images, labels),) = source.held_out("val")
    assert labels.tolist() == [0, 0, 1, 1]
    for image, number in zip(images, (0, 2, 1, 3), strict=True):
        assert torch.allclose(255 * image, centred(noise, number, "val"), atol=1e-3)


@pytest.mark.parametrize(("rate", "least", "most"), [(1.0, COUNT, COUNT), (0.5, 4, 20)])
def test_flips_mirror_left_and_right(noise, rate, least, most):
    flipped = 0
    for number, (image,) in epoch(noise, hflip=rate).items():
        plain = centred(noise, number)
        flipped += (mirrored := torch.allclose(image, plain.flip(-1), atol=1e-3))
        assert mirrored or torch.allclose(image, plain, atol=1e-3)
    assert least <= flipped <= most


@pytest.mark.parametrize(("rate", "least", "most"), [(1.0, COUNT, COUNT), (0.5, 4, 20)])
def test_erasing_replaces_one_rectangle_by_noise(noise, rate, least, most):
    erased = 0
    for number, (image,) in epoch(noise, erase=rate).items():
        changed = ((image - centred(noise, number)).abs() > 1e-3).any(0)
        if not changed.any():
            continue
        erased += 1
        rows, columns = (torch.where(changed.any(axis))[0] for axis in (1, 0))
        inside = image[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        assert bool(changed[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all())
        assert 0.01 < changed.double().mean() < 0.4  # timm's range is 0.02 to 1/3
        assert len(inside.unique()) > inside.numel() / 2, "not one value a pixel"
    assert least <= erased <= most


@pytest.mark.parametrize("scale", [[0.25, 0.25], [0.5, 0.6]])
def test_random_crops_have_the_stated_share_of_the_image(ramps, scale):
    corners = set()
    for (image,) in epoch(ramps, scale=scale).values():
        width, height = (
            float(image[channel].flatten(0).max() - image[channel].min()) * SIDE / (SIDE - 1) for channel in (0, 1)
        )
        assert scale[0] * 0.93 < width * height / 200**2 < scale[1] * 1.07
        assert 0.7 < width / height < 1.43
        corners.add((round(float(image[0].min())), round(float(image[1].min()))))
    assert len(corners) > COUNT / 2


def test_colours_change_within_the_stated_range(grey):
    """On grey pictures brightness alone shows: each is multiplied by one factor from 0.6 to 1.4."""
    factors = set()
    for (image,) in epoch(grey, color_jitter=0.4).values():
        assert float(image.max() - image.min()) < 1e-3
        factors.add(round(float(image[0, 0, 0])) / 100)
    assert len(factors) > COUNT / 2
    assert 0.6 <= min(factors) < 0.75
    assert 1.25 < max(factors) <= 1.4


def test_policies_change_most_images_and_others_work_beside_a_crop(noise, ramps):
    # Of magnitude 10, four of four; `Equalize` of noise and the like may leave some as they are.
    seen = epoch(noise, auto_augment="rand-m10-n4-p1-inc1")
    changed = [not torch.allclose(image, centred(noise, number), atol=1) for number, (image,) in seen.items()]
    assert sum(changed) >= 0.9 * COUNT
    # With all of the image in the crop: red falls from left to right where it is mirrored.
    images = [image for (image,) in epoch(ramps, scale=[0.9, 0.9], hflip=1.0).values()]
    assert all(float(image[0, :, 0].mean()) > float(image[0, :, -1].mean()) for image in images)
    erased = [image[2].abs().max() > 1 for (image,) in epoch(ramps, scale=[0.9, 0.9], erase=1.0).values()]
    assert all(erased)


def test_repeats_and_order_of_an_epoch(noise):
    repeats = 3
    seen = epoch(noise, repeats=repeats)
    assert [len(images) for images in seen.values()] == [repeats] * (COUNT // repeats)
    assert len({tuple(sorted(epoch(noise, number, repeats=repeats))) for number in range(3)}) > 1
    first, again, second = (list(epoch(noise, number)) for number in (0, 0, 1))
    assert first == again != second
    assert first != sorted(first)


@pytest.mark.parametrize("policy", ["rand-mmax12-p0.5-tweights", "augmix-m5-w4-d2-a1.0-b1", "v0r-mstd0.5", "3a"])
def test_policies_of_timm_are_taken(noise, policy):
    assert len(epoch(noise, auto_augment=policy)) == COUNT


@pytest.mark.parametrize(
    "policy", ["v1", "RAND-m9", "rand-m", "rand-mx", "rand-m5-m9", "rand-m9-q3", "rand-tweight", "rand-inc2", "v0-m9"]
)
def test_what_timm_would_pass_over_in_a_policy_is_refused(noise, policy):
    with pytest.raises(BadInputError, match="auto_augment: timm"):
        epoch(noise, auto_augment=policy)


@pytest.mark.parametrize("scale", [[0.5, 0.2], [math.inf, math.inf]])
def test_crops_that_no_image_has_are_refused(noise, scale):
    with pytest.raises(BadInputError, match="scale"):
        epoch(noise, scale=scale)
