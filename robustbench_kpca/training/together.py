"""Trainings of one recipe with several seeds, side by side in one pass: what a device does once serves all of them."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.training.objective import Objective
from robustbench_kpca.training.run import Run
from robustbench_kpca.training.source import Batch, Drawn, InMemory
from robustbench_kpca.training.stacked import Stacked

ELEMENTWISE = ("adam", "adamw", "nadam", "nadamw", "radam", "sgd", "momentum")
"""Optimisers that treat every entry of a parameter by itself, so that those of several models can lie in one tensor."""


class Together:
    """Several runs after the same epoch; their recipes differ in the seed only.

    Each sees the images, shifts, flips and attacks that it would see alone; its numbers differ by rounding.

    Raises:
        BadInputError: the recipe cannot be trained so.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs, self.first, recipe = runs, runs[0], runs[0].recipe
        unfit = {
            "mixup": recipe.mixup is not None,
            "ema_decay": recipe.ema_decay is not None,
            "penalties": bool(recipe.penalties),
            f"precision = '{recipe.precision}'": recipe.precision != "fp32",
            f"optimizer = '{recipe.optimizer}'": recipe.optimizer not in ELEMENTWISE,
            f"data = '{recipe.data}'": not isinstance(self.first.source, InMemory),
            "several processes": self.first.accelerator.num_processes > 1,
        }
        for what, met in unfit.items():
            if met:
                raise BadInputError(f"seeds together with {what}", fix="leave --together out, or change the recipe")
        self.model = Stacked([run.plain for run in runs])
        inner = self.first.optimizer.optimizer
        names = {id(parameter): name for name, parameter in self.first.plain.named_parameters()}
        groups = [
            group | {"params": [self.model.stacks[names[id(parameter)]] for parameter in group["params"]]}
            for group in inner.param_groups
        ]
        self.optimizer = type(inner)(groups, lr=recipe.lr)
        self._gather_states()
        seeds = [run.recipe.seed for run in runs]
        self.objective = Objective(recipe, self.model, self.first.training, self.first.classes, seeds)

    def epoch(self) -> None:
        """Train all models on all images once, and note the numbers of each."""
        recipe, count = self.first.recipe, len(self.runs)
        number = self.first.done
        steps = math.ceil(self.first.source.length / recipe.batch_size)
        sums = torch.zeros(count, 4, dtype=torch.float64, device=self.first.accelerator.device)
        self.model.train()
        self.first.scheduler.step(number)
        sources = [run.source for run in self.runs if isinstance(run.source, InMemory)]
        for step, draws in enumerate(zip(*(source.draws(number) for source in sources), strict=True)):
            self.first.scheduler.step_update(number * steps + step)
            batch = sources[0].taken(_joined(draws))
            losses, logits = self._step(batch, draws[0].count, number)
            hits = (logits.argmax(1) == batch.y).view(count, -1).sum(1)
            images = torch.full_like(hits, draws[0].count)
            sums += torch.stack([losses.view(count, -1).sum(1), images, hits, images], 1)
            self.first.report(number, min((step + 1) * recipe.batch_size, self.first.source.length))
        self._scatter_states()
        for run, own in zip(self.runs, sums, strict=True):
            run.close(number, own)

    def _step(self, batch: Batch, images: int, number: int) -> tuple[Tensor, Tensor]:
        losses, logits = self.objective(self.model, batch, number)
        for group, own in zip(self.optimizer.param_groups, self.first.optimizer.param_groups, strict=True):
            group["lr"] = own["lr"]
        self.optimizer.zero_grad()
        (losses.sum() / images).backward()
        if self.first.recipe.clip_grad is not None:
            self._clip(self.first.recipe.clip_grad)
        self.optimizer.step()
        return losses.detach(), logits.detach()

    def _clip(self, most: float) -> None:
        """Limit the norm of the gradient of each model, as `clip_grad_norm_` does that of one."""
        gradients = [stack.grad for stack in self.model.stacks.values() if stack.grad is not None]
        squares = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0)
        share = (most / (squares.sqrt() + 1e-6)).clamp(max=1)
        for gradient in gradients:
            gradient.mul_(share.view(-1, *(1,) * (gradient.ndim - 1)))

    def _scatter_states(self) -> None:
        """Give every run its parameters, the state of its optimiser and the learning rates."""
        for place, run in enumerate(self.runs):
            for own, group in zip(run.optimizer.param_groups, self.optimizer.param_groups, strict=True):
                own["lr"] = group["lr"]
            for name, parameter in run.plain.named_parameters():
                stack = self.model.stacks[name]
                parameter.data.copy_(stack.detach()[place])
                run.optimizer.optimizer.state[parameter] = {
                    key: value[place].clone() if value.shape == stack.shape else value.clone()
                    for key, value in self.optimizer.state[stack].items()
                }

    def _gather_states(self) -> None:
        """Take over the states of the runs' optimisers, where they have some; all have the same number of steps."""
        for name, stack in self.model.stacks.items():
            states: list[dict[str, Any]] = [
                run.optimizer.optimizer.state.get(run.plain.get_parameter(name), {}) for run in self.runs
            ]
            for key, value in states[0].items():
                whole = value.shape == stack.shape[1:]
                self.optimizer.state[stack][key] = (
                    torch.stack([state[key] for state in states]) if whole else value.clone()
                )


def _joined(draws: Sequence[Drawn]) -> Drawn:
    """Return the draws of all runs as one batch, one after the other: the images are the same in all."""
    index, offsets, flipped = (
        torch.cat([getattr(drawn, name) for drawn in draws]) for name in ("index", "offsets", "flipped")
    )
    return Drawn(index, offsets, flipped, sum(drawn.count for drawn in draws))
