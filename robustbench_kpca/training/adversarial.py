"""Adversarial examples inside training: an attack of the evaluation runs to the end of its budget."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.attack_loop.follow import PlainQuery, Rows, WholeBatches, run_to_end
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.randomness import sample_key
from robustbench_kpca.strict import validate
from robustbench_kpca.training.recipe import Adversarial
from robustbench_kpca.types import Attack, Images, Labels, Logits, Loss, PerSample


def adversarial_images(
    model: nn.Module,
    x: Images,
    y: Labels,
    ids: Sequence[str],
    settings: Adversarial,
    *,
    seed: int,
    epoch: int,
) -> Images:
    """Return the last iterate of the attack for every image; the model is in evaluation mode meanwhile.

    With `settings.trades_beta` the attack increases KL(f(x) || f(x')), in place of its own loss.

    Args:
        model: that is trained.
        x: clean images in [0, 1].
        y: their labels.
        ids: of the images; the randomness of an image depends on `seed`, `epoch` and its id only.
        settings: the attack and its budget.
        seed: of the recipe.
        epoch: its number, from 0; the radius may grow with it.

    """
    threat = settings.threat(epoch)
    attack: Attack = validate(ATTACKS.get(settings.attack), settings.options, f"attack '{settings.attack}'")
    keys = torch.tensor([sample_key(seed, f"train/{epoch}", sample) for sample in ids])
    was_training = model.training
    model.eval()
    runs = WholeBatches(model)
    query = PlainQuery(runs)
    if settings.trades_beta is not None:
        query = PlainQuery(runs, partial(_divergence_from, runs.logits(x).softmax(1)))
    state = run_to_end(attack, query, x, y, threat, keys)
    model.train(was_training)
    return state["x"].detach()


def _divergence_from(clean: Logits, rows: Rows) -> Loss:
    """Return KL(p || f(x')) as a loss; p are the rows of `clean`, (batch, classes), which holds probabilities."""
    expected = clean[rows]

    def loss(logits: Logits) -> PerSample:
        return F.kl_div(logits.log_softmax(1), expected, reduction="none").sum(1)

    return loss
