"""What one step minimises: cross-entropy, clean, mixed or adversarial, and the losses that attentions add."""

from typing import Any

import torch
from timm.data import Mixup as TimmMixup
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.training.adversarial import adversarial_images
from robustbench_kpca.training.recipe import Recipe
from robustbench_kpca.training.source import Batch
from robustbench_kpca.types import IGNORE, Labels, Logits, PerSample


class Objective:
    """Maps a batch to the loss of its images, one each, and the logits that the training accuracy is read from."""

    def __init__(self, recipe: Recipe, model: nn.Module, classes: int) -> None:
        self.recipe, self.plain = recipe, model
        self.mixup = None
        if recipe.mixup is not None:
            self.mixup = TimmMixup(
                recipe.mixup.mixup, recipe.mixup.cutmix, prob=recipe.mixup.prob, switch_prob=recipe.mixup.switch_prob,
                label_smoothing=recipe.smoothing, num_classes=classes,
            )  # fmt: skip
        self.sources: list[Any] = [module for module in model.modules() if hasattr(module, "penalties")]

    def __call__(self, model: nn.Module, batch: Batch, epoch: int) -> tuple[PerSample, Logits]:
        """Run `model`, which may be a wrapper of the plain one, in training mode.

        Raises:
            BadInputError: a penalty whose weight the recipe does not state.

        """
        losses, logits = self._losses(model, batch, epoch)
        return losses + self._penalty(), logits

    def _losses(self, model: nn.Module, batch: Batch, epoch: int) -> tuple[PerSample, Logits]:
        x, y, smoothing = batch.x, batch.y, self.recipe.smoothing
        settings = self.recipe.adversarial
        if settings is None:
            target: Tensor = y
            if self.mixup is not None:
                x, target = self.mixup(x.clone(), y)  # it mixes in place
                smoothing = 0.0  # the mixed targets are smoothed already
            logits = model(x).float()
            if logits.ndim > 2:
                assert batch.pixels is not None
                return pixel_losses(logits, y, smoothing, batch.count / batch.pixels.clamp_min(1)), logits
            return F.cross_entropy(logits, target, reduction="none", label_smoothing=smoothing), logits
        attacked = adversarial_images(
            self.plain, x, y, batch.ids, settings, seed=self.recipe.seed, epoch=epoch
        )  # fmt: skip
        if settings.trades_beta is None:
            logits = model(attacked).float()
            return F.cross_entropy(logits, y, reduction="none", label_smoothing=smoothing), logits
        logits, moved = model(torch.cat([x, attacked])).float().chunk(2)
        clean = F.cross_entropy(logits, y, reduction="none", label_smoothing=smoothing)
        divergence = F.kl_div(moved.log_softmax(1), logits.log_softmax(1), reduction="none", log_target=True).sum(1)
        return clean + settings.trades_beta * divergence, logits

    def _penalty(self) -> Tensor | float:
        """Weigh the mean over layers of every penalty the last training pass left behind."""
        found: dict[str, list[Tensor]] = {}
        for source in self.sources:
            for name, value in source.penalties.items():
                found.setdefault(name, []).append(value)
        idle = [name for name in self.recipe.penalties if name not in found]
        if idle:
            raise BadInputError(f"model '{self.recipe.model}' adds no loss '{idle[0]}'", fix="drop it from the recipe")
        unstated = [name for name in found if name not in self.recipe.penalties]
        if unstated:
            raise BadInputError(
                f"model '{self.recipe.model}' adds the loss '{unstated[0]}'",
                expected=f"its weight in the recipe: penalties.{unstated[0]} (0 leaves it out)",
            )
        return sum((self.recipe.penalties[name] * torch.stack(all_).mean() for name, all_ in found.items()), 0.0)


def pixel_losses(logits: Logits, labels: Labels, smoothing: float, weight: Tensor) -> PerSample:
    """Return one loss per image, whose mean over the global batch is the mean over its pixels that count.

    Args:
        logits: shape (batch, classes, height, width).
        labels: shape (batch, height, width): classes, or IGNORE.
        smoothing: of labels, in [0, 1).
        weight: of a pixel: images of the global batch, over its pixels that are not to be ignored.

    """
    losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing, ignore_index=IGNORE)
    return losses.flatten(1).sum(1) * weight
