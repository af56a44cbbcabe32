"""Batches of data in memory: bytes until a batch is shown, and one shift and flip an image."""

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from stand_ins import few_digits

from robustbench_kpca import load_data
from robustbench_kpca.data.forms import PICTURES
from robustbench_kpca.training.recipe import load_recipe
from robustbench_kpca.training.source import InMemory, in_unit_box, shift


def moved(image, down, right):
    out = torch.zeros_like(image)
    _, height, width = image.shape
    for y in range(height):
        for x in range(width):
            if 0 <= y - down < height and 0 <= x - right < width:
                out[:, y, x] = image[:, y - down, x - right]
    return out


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
@pytest.mark.parametrize("reach", [1, 3])
def test_each_image_is_shifted_by_its_own_offset(kind, reach):
    rng = torch.Generator().manual_seed(reach)
    images = torch.randint(0, 256, (9, 2, 5, 4), generator=rng).to(kind)
    offsets = torch.randint(0, 2 * reach + 1, (9, 2), generator=rng)
    found = shift(images, offsets, reach)
    expected = [moved(image, *(pair - reach).tolist()) for image, pair in zip(images, offsets, strict=True)]
    assert torch.equal(found, torch.stack(expected))
    assert found.dtype == kind
    assert found.is_contiguous()


def test_bytes_become_the_floats_that_models_are_shown():
    pixels = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    assert torch.equal(in_unit_box(torch.from_numpy(pixels).permute(2, 0, 1)[None])[0], PICTURES.tensor(pixels))


def test_an_epoch_is_every_image_once_flipped_and_shifted_as_the_seed_says():
    """The draws are an order for the epoch, then for each batch its offsets and its flips."""
    _, recipe, _ = load_recipe("vit_digits", {"max_shift": 2, "hflip": 0.5, "batch_size": 24, "seed": 3})
    with few_digits(64):
        source = InMemory(recipe, None, Accelerator(cpu=True))
        images, labels = load_data("digits", "train").tensors()
    assert source.pixels.dtype == torch.uint8
    rng = torch.Generator().manual_seed(3 * 100_003 + 5)
    order = torch.randperm(64, generator=rng)
    for batch, index in zip(source.epoch(5), order.split(24), strict=True):
        offsets = torch.randint(0, 5, (len(index), 2), generator=rng)
        flips = torch.rand(len(index), generator=rng) < 0.5
        shown = [images[i].flip(-1) if flip else images[i] for i, flip in zip(index, flips, strict=True)]
        expected = [moved(image, *(pair - 2).tolist()) for image, pair in zip(shown, offsets, strict=True)]
        assert torch.equal(batch.x, torch.stack(expected))
        assert torch.equal(batch.y, labels[index])
        assert batch.count == len(index)
