"""The learning rate over a run: cosine, set once an epoch; polynomial and inverse square root, set at every step."""

from typing import Any

from timm.scheduler import CosineLRScheduler, PolyLRScheduler

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.training.recipe import Recipe

MIN_LR_SHARE = 0.01  # first and last learning rate where the recipe has none, as a share of the highest


class InverseSquareRoot:
    """lr (w / t)^(1/2) at step t, after a linear warm-up of w steps; Vaswani et al. (2017), arXiv:1706.03762."""

    def __init__(self, optimizer: Any, lr: float, warmup: int, first: float) -> None:
        self.optimizer, self.lr, self.warmup, self.first = optimizer, lr, warmup, first

    def step(self, epoch: int) -> None:
        """Do nothing: it changes with the steps."""

    def step_update(self, number: int) -> None:
        """Set the learning rate of step `number`, from 0."""
        share = number / self.warmup
        rate = self.first + (self.lr - self.first) * share if share < 1 else self.lr * share**-0.5
        for group in self.optimizer.param_groups:
            group["lr"] = rate


def schedule(recipe: Recipe, optimizer: Any, steps: int) -> Any:
    """Return a scheduler like timm's; call `step(epoch)` before every epoch and `step_update(t)` before step t, from 0.

    Args:
        steps: number of steps of an epoch; 0 if unknown.

    Raises:
        BadInputError: the schedule counts steps, and their number is unknown.
    """
    ends = {
        "lr_min": recipe.min_lr or recipe.lr * MIN_LR_SHARE,
        "warmup_lr_init": recipe.warmup_lr or recipe.lr * MIN_LR_SHARE,
    }
    if recipe.schedule == "cosine":
        return CosineLRScheduler(optimizer, t_initial=recipe.epochs, warmup_t=recipe.warmup_epochs, **ends)
    if not steps:
        raise BadInputError(f"schedule '{recipe.schedule}' for data of unknown length", fix="set schedule = 'cosine'")
    if recipe.schedule == "inverse_sqrt":
        return InverseSquareRoot(optimizer, recipe.lr, recipe.warmup_epochs * steps, ends["warmup_lr_init"])
    return PolyLRScheduler(
        optimizer,
        t_initial=recipe.epochs * steps,
        power=recipe.power,
        warmup_t=recipe.warmup_epochs * steps,
        t_in_epochs=False,
        **ends,
    )
