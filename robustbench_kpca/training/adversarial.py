"""Adversarial examples inside training: an attack of the evaluation runs to the end of its budget."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.randomness import sample_key
from robustbench_kpca._core.strict import validate
from robustbench_kpca._engine.attack_loop.follow import PlainQuery, Rows, WholeBatches, run_to_end
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.training.recipe import Adversarial, Stronger
from robustbench_kpca.types import Attack, Images, Logits, Loss, PerSample


def adversarial_images(
    model: nn.Module,
    x: Images,
    y: Tensor,
    keys: Tensor,
    settings: Adversarial,
    *,
    epoch: int | None,
) -> Images:
    """Return the last iterate of the attack for every image; the model is in evaluation mode meanwhile.

    Which loss it increases:

    - with `settings.trades_beta`, KL(f(x) || f(x'));
    - where `y` holds distributions, as mixup makes them, their cross-entropy - sum_k y_k log softmax(f(x'))_k;
    - else its own loss of the label.

    Args:
        x: clean images. Values outside [0, 1], as random erasing makes them, are clipped: attacks stay in this box.
        y: their labels, or distributions over the classes, (batch, classes).
        keys: of the images' randomness, (batch,): see `keys_of`.
        epoch: its number, from 0; the radius may grow with it. None: held-out images, at the full radius.
    """
    threat, attack = settings.threat(epoch), attack_of(settings)
    x, labels = x.clamp(0, 1), y.argmax(1) if y.is_floating_point() else y
    was_training = model.training
    model.eval()
    runs = WholeBatches(model)
    query = PlainQuery(runs)
    if settings.trades_beta is not None:
        query = PlainQuery(runs, partial(_divergence_from, runs.logits(x).softmax(1)))
    elif y.is_floating_point():
        query = PlainQuery(runs, partial(_cross_entropy_with, y))
    with torch.enable_grad():
        state = run_to_end(attack, query, x, labels, threat=threat, keys=keys)
    model.train(was_training)
    return state["x"].detach()


def keys_of(ids: Sequence[str], seed: int, epoch: int | None) -> Tensor:
    """Return the keys of images' randomness, which depends on the recipe's seed, the epoch and the image's id only."""
    stream = "val" if epoch is None else f"train/{epoch}"
    return torch.tensor([sample_key(seed, stream, sample) for sample in ids])


def attack_of(settings: Adversarial | Stronger) -> Attack:
    """Return the attack that a table of a recipe names.

    Raises:
        BadInputError: an unknown attack, or options that it does not have.
    """
    attack: Attack = validate(ATTACKS.get(settings.attack), settings.options, f"attack '{settings.attack}'")
    return attack


def _divergence_from(clean: Logits, rows: Rows) -> Loss:
    """Return KL(p || f(x')) as a loss; p are the rows of `clean`, (batch, classes), which holds probabilities."""
    expected = clean[rows]

    def loss(logits: Logits) -> PerSample:
        return F.kl_div(logits.log_softmax(1), expected, reduction="none").sum(1)

    return loss


def _cross_entropy_with(targets: Tensor, rows: Rows) -> Loss:
    """Return - sum_k t_k log softmax(z)_k as a loss; t are the rows of `targets`, (batch, classes)."""
    expected = targets[rows]

    def loss(logits: Logits) -> PerSample:
        return F.cross_entropy(logits, expected, reduction="none")

    return loss
