"""The training loss: the task's loss on clean, mixed or adversarial images, and the losses that attentions add.

Adversarial images are the last ones of an attack of the evaluation, which runs to the end of its budget.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timm.data import Mixup as TimmMixup
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.randomness import sample_key
from robustbench_kpca._core.strict import validate
from robustbench_kpca._engine.attack_loop.engine import build_attack
from robustbench_kpca._engine.attack_loop.follow import PlainQuery, Rows, WholeBatches, run_to_end
from robustbench_kpca._engine.attack_loop.sets import set_of
from robustbench_kpca._engine.attack_loop.threat import threat_for
from robustbench_kpca._engine.inference.mode import frozen, kept_buffers, ordinary
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.protocols.scenario import Attack as AttackProtocol
from robustbench_kpca.protocols.scenario import Override
from robustbench_kpca.tasks.prepare import prepare
from robustbench_kpca.tasks.training import Training
from robustbench_kpca.training.recipe import Adversarial, Recipe, Stronger
from robustbench_kpca.training.source import Batch
from robustbench_kpca.types import Attack, Images, Labels, Logits, Loss, PerSample


@torch.inference_mode(mode=False)
def perturb(
    model: nn.Module, images: Images, labels: Labels, protocol: str | Path, *, seed: int = 0, **overrides: Override
) -> Images:
    """Return the images that an attack ends with, for a training loop: the passes of its search, and no other.

    The model is used as it is, in training mode too. Afterwards its mode, its buffers, such as the statistics of batch
    normalisation, and the gradients of its parameters are what they were. Every image is attacked to the end of the
    budget. Nothing is judged or checked on the way, so use `evaluate` for numbers.

    Args:
        model: maps images in [0, 1] to logits, (batch, classes).
        images: (batch, channels, height, width) in [0, 1], on the model's device.
        labels: (batch,), one class an image.
        protocol: an attack in pixels, of one stage with one restart, without a target.
        seed: seed of random starts; those of image i are those of the sample "i".
        **overrides: fields of the protocol to replace, as in `evaluate`.

    Raises:
        BadInputError: images or labels of another kind, or a protocol that asks for more.

    Examples:
        >>> from robustbench_kpca import load_data, load_model, perturb
        >>> images, labels = load_data("digits", limit=4).tensors()
        >>> perturb(load_model("vit_digits"), images, labels, "pgd20-linf-8_255", steps=7).shape
        torch.Size([4, 3, 32, 32])
    """
    label, scenario = prepare(protocol, overrides)
    if not isinstance(scenario, AttackProtocol) or not _is_one_search(scenario):
        raise BadInputError(
            f"protocol '{label}' for a training loop",
            expected="an attack in pixels of one stage with one restart, true labels, without a target or twin",
        )
    _require_batch(images, labels)
    images, labels = ordinary(images), ordinary(labels)
    [stage] = scenario.stage
    threat, built = threat_for(scenario, model), build_attack(stage)
    set_of(threat).require_attack(stage.attack, built)
    streams = [sample_key(seed, f"0/{stage.attack}/0", str(number)) for number in range(len(images))]
    keys, query = torch.tensor(streams, device=images.device), PlainQuery(WholeBatches(model))
    with frozen(model), kept_buffers(model), torch.enable_grad():
        return run_to_end(built, query, images, labels, threat=threat, keys=keys)["x"]


def _is_one_search(scenario: AttackProtocol) -> bool:
    """Whether a protocol asks for the search of one attack alone."""
    single = [stage.restarts for stage in scenario.stage] == [1] and scenario.stage[0].name == scenario.stage[0].attack
    usual = (scenario.space, scenario.draws, scenario.storage) == ("pixel", 1, None)
    return single and usual and scenario.labels != "predicted" and not scenario.below


def _kind(values: Any) -> str:
    return f"{values.dtype}, {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__


def _require_batch(images: Images, labels: Labels) -> None:
    """Refuse what no batch of images in [0, 1] with one class each is."""
    pictures = isinstance(images, Tensor) and images.is_floating_point() and images.ndim == 4
    if not (pictures and isinstance(labels, Tensor) and labels.dtype == torch.int64 and labels.shape == (len(images),)):
        raise BadInputError(
            f"images of {_kind(images)}, labels of {_kind(labels)}",
            expected="a float tensor (batch, channels, height, width), and an int64 tensor (batch,)",
        )
    low, high = images.aminmax()
    if not bool((low >= 0) & (high <= 1)):  # false for NaN, too
        raise BadInputError("images with values outside [0, 1]", expected="images that are not normalised")


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
        keys: keys of the images' randomness, (batch,): see `keys_of`.
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


class Objective:
    """Maps a batch to one loss an image, and to the logits that the training accuracy is computed from.

    Args:
        model: without any wrapper; attacks run it, and its layers may add losses.
        classes: number of classes of the model.
        seeds: of the attacks' randomness, in place of the recipe's: the first part of a batch has the first, and so on.
    """

    def __init__(
        self, recipe: Recipe, model: nn.Module, training: Training, classes: int, seeds: Sequence[int] = ()
    ) -> None:
        self.recipe, self.plain, self.training = recipe, model, training
        self.seeds = seeds or [recipe.seed]
        self.mixup = None
        if recipe.mixup is not None:
            self.mixup = TimmMixup(
                recipe.mixup.mixup,
                recipe.mixup.cutmix,
                prob=recipe.mixup.prob,
                switch_prob=recipe.mixup.switch_prob,
                label_smoothing=recipe.smoothing,
                num_classes=classes,
            )
        self.penalised: list[Any] = [module for module in model.modules() if hasattr(module, "penalties")]

    def __call__(self, model: nn.Module, batch: Batch, epoch: int) -> tuple[PerSample, Logits]:
        """Run `model`, which may be a wrapper of the plain one, in training mode.

        The mean of the losses over the global batch is the mean over its labels that count, plus the penalties.

        Raises:
            BadInputError: the model adds a loss whose weight the recipe does not state, or does not add one that the
                recipe states.
        """
        losses, logits = self._losses(model, batch, epoch)
        return losses * batch.weight + self._penalty(), logits

    def _losses(self, model: nn.Module, batch: Batch, epoch: int) -> tuple[PerSample, Logits]:
        x, smoothing, settings = batch.x, self.recipe.smoothing, self.recipe.adversarial
        targets: Tensor = batch.y
        if self.mixup is not None:
            x, targets = self.mixup(x.clone(), targets)  # it changes the images in place
            smoothing = 0.0  # the mixed targets are smoothed already
        if settings is None:
            logits = model(x).float()
            return self.training.losses(logits, targets, smoothing), logits
        each = len(batch.ids) // len(self.seeds)
        keys = [keys_of(batch.ids[i * each : (i + 1) * each], seed, epoch) for i, seed in enumerate(self.seeds)]
        attacked = adversarial_images(self.plain, x, targets, torch.cat(keys), settings, epoch=epoch)
        if settings.trades_beta is None:
            logits = model(attacked).float()
            return self.training.losses(logits, targets, smoothing), logits
        logits, moved = model(torch.cat([x, attacked])).float().chunk(2)
        clean = self.training.losses(logits, targets, smoothing)
        divergence = F.kl_div(moved.log_softmax(1), logits.log_softmax(1), reduction="none", log_target=True).sum(1)
        return clean + settings.trades_beta * divergence, logits

    def _penalty(self) -> Tensor | float:
        """Return the weighted sum of the penalties of the last forward pass; each is a mean over layers."""
        penalties: dict[str, list[Tensor]] = {}
        for module in self.penalised:
            for name, value in module.penalties.items():
                penalties.setdefault(name, []).append(value)
        idle = [name for name in self.recipe.penalties if name not in penalties]
        if idle:
            raise BadInputError(f"model '{self.recipe.model}' has no loss '{idle[0]}'", fix="remove it from the recipe")
        unstated = [name for name in penalties if name not in self.recipe.penalties]
        if unstated:
            raise BadInputError(
                f"model '{self.recipe.model}' adds the loss '{unstated[0]}'",
                expected=f"its weight in the recipe: penalties.{unstated[0]} (0 leaves it out)",
            )
        return sum((self.recipe.penalties[name] * torch.stack(all_).mean() for name, all_ in penalties.items()), 0.0)
