"""The training loss: the task's loss on clean, mixed or adversarial images, and the losses that attentions add."""

from collections.abc import Sequence
from typing import Any

import torch
from timm.data import Mixup as TimmMixup
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.tasks.training import Training
from robustbench_kpca.training.adversarial import adversarial_images, keys_of
from robustbench_kpca.training.recipe import Recipe
from robustbench_kpca.training.source import Batch
from robustbench_kpca.types import Logits, PerSample


class Objective:
    """Maps a batch to one loss an image, and to the logits that the training accuracy is computed from.

    Args:
        model: without any wrapper; attacks run it, and its layers may add losses.
        classes: of the model.
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
