"""Steps of training against closed forms: the gradient is clipped, and averaged weights follow."""

import pytest
import torch
from accelerate import Accelerator
from stand_ins import few_digits

from robustbench_kpca.training.ledger import Ledger, Options
from robustbench_kpca.training.machine import own_generators
from robustbench_kpca.training.recipe import load_recipe
from robustbench_kpca.training.run import Run

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


def test_averaged_weights_follow_by_the_stated_decay(tmp_path):
    """After step t they are d times what they were and 1 - d times the weights; they begin as the initial weights."""
    weights, _, run = weights_over_steps(tmp_path, 3, ema_decay=0.75)
    averaged = weights[0]
    for current in weights[1:]:
        averaged = 0.75 * averaged + 0.25 * current
    torch.testing.assert_close(flat(run.ema.module), averaged, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(averaged, weights[0])
    assert not torch.allclose(averaged, weights[-1])
