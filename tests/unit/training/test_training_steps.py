"""Training in memory: what an epoch shows, and what a step does."""

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from stand_ins import few_digits

from robustbench_kpca import load_data
from robustbench_kpca.data.forms import PICTURES
from robustbench_kpca.training.ledger import Ledger, Options
from robustbench_kpca.training.machine import own_generators
from robustbench_kpca.training.recipe import load_recipe
from robustbench_kpca.training.run import Run
from robustbench_kpca.training.source import InMemory, in_unit_box, shift

PLAIN = {"optimizer": "sgd", "weight_decay": 0.0, "smoothing": 0.0, "max_shift": 0, "batch_size": 32,
         "model_options.depth": 1}  # fmt: skip


def weights_over_steps(folder, steps, **settings):
    """The weights before each step and after the last, the norm of the first gradient, and the run."""
    name, recipe, text = load_recipe("vit_digits", PLAIN | settings)
    ledger = Ledger(name, text, folder, revision=None, keep_every=0)
    with few_digits(64), own_generators():
        run = Run(name, recipe, ledger, Options(), Accelerator(cpu=True))
        batch = next(iter(run.source.epoch(0)))
        losses, _ = run.objective(run.model, batch, 0)
        gradients = torch.autograd.grad(losses.mean(), tuple(run.plain.parameters()))
        weights = [flat(run.plain)]
        for _ in range(steps):
            run._step(batch, 0)
            weights.append(flat(run.plain))
    return weights, float(torch.cat([g.flatten() for g in gradients]).norm()), run


def flat(model):
    return torch.cat([value.detach().double().flatten() for value in model.parameters()])


@pytest.mark.parametrize("share", [0.25, 4.0])
def test_a_gradient_is_clipped_to_the_stated_norm(tmp_path, share):
    """The first step of SGD is proportional to the gradient: clipped to a share of its norm, that share is taken."""
    (start, free), norm, _ = weights_over_steps(tmp_path, 1)
    (_, clipped), _, _ = weights_over_steps(tmp_path, 1, clip_grad=share * norm)
    assert float((free - start).norm()) > 0
    torch.testing.assert_close(clipped - start, min(share, 1.0) * (free - start), rtol=1e-3, atol=1e-7)


def test_weights_follow_by_the_stated_decay_and_bytes_become_floats(tmp_path):
    # After step t they are d times what they were and 1 - d times the weights; they begin as the initial weights.
    weights, _, run = weights_over_steps(tmp_path, 3, ema_decay=0.75)
    averaged = weights[0]
    for current in weights[1:]:
        averaged = 0.75 * averaged + 0.25 * current
    torch.testing.assert_close(flat(run.ema.module), averaged, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(averaged, weights[0])
    assert not torch.allclose(averaged, weights[-1])
    pixels = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    assert torch.equal(in_unit_box(torch.from_numpy(pixels).permute(2, 0, 1)[None])[0], PICTURES.tensor(pixels))


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
