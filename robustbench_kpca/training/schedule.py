"""The learning rate over a run: cosine, set once an epoch, or polynomial, set at every step."""

from typing import Any

from timm.scheduler import CosineLRScheduler, PolyLRScheduler

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.training.recipe import Recipe

MIN_LR_SHARE = 0.01  # first and last learning rate where the recipe has none, as a share of the highest


def schedule(recipe: Recipe, optimizer: Any, steps: int) -> Any:
    """Return timm's scheduler; call `step(epoch)` before every epoch and `step_update(t)` before step t, from 0.

    Args:
        recipe: with the options of the schedule.
        optimizer: whose learning rate is set.
        steps: number of steps of an epoch; 0 if unknown.

    Raises:
        BadInputError: a polynomial schedule where the number of steps is unknown.

    """
    ends = {
        "lr_min": recipe.min_lr or recipe.lr * MIN_LR_SHARE,
        "warmup_lr_init": recipe.warmup_lr or recipe.lr * MIN_LR_SHARE,
    }
    if recipe.schedule == "cosine":
        return CosineLRScheduler(optimizer, t_initial=recipe.epochs, warmup_t=recipe.warmup_epochs, **ends)
    if not steps:
        raise BadInputError("a polynomial schedule for data of unknown length", fix="set schedule = 'cosine'")
    return PolyLRScheduler(
        optimizer,
        t_initial=recipe.epochs * steps,
        power=recipe.power,
        warmup_t=recipe.warmup_epochs * steps,
        t_in_epochs=False,
        **ends,
    )
