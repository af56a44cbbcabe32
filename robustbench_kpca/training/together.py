"""Trainings of one recipe with several seeds, side by side in one pass: what a device does once serves all of them."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.training.objective import Objective
from robustbench_kpca.training.run import Run
from robustbench_kpca.training.source import Batch, Drawn, InMemory
from robustbench_kpca.types import Images, Logits


class Stacked(nn.Module):
    """S models of one architecture as one: the first B of S * B images go through the first, and so on.

    Each parameter of the models becomes one with a first dimension of S. Linear layers, layer norms and convolutions
    run as one operation for all. Any other parameter must have a first dimension of 1, and is repeated for the images
    of its model. All else sees a larger batch. Logits are those of the models, but for rounding.

    Attributes:
        stacks: name of a parameter of the models -> the parameters of all, (S, ...).

    Raises:
        BadInputError: they mix the images of a batch in training (batch norm), or draw (such as dropout).
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        frame = deepcopy(models[0])
        for module in frame.modules():
            if hasattr(module, "running_mean") or _draws(module):
                raise BadInputError(
                    f"several models at once with {type(module).__name__}",
                    expected="no batch norm, no dropout, and no other draws",
                )
        self.frame = frame.requires_grad_(False)
        named = [dict(model.named_parameters()) for model in models]
        self.stacks = {name: torch.stack([each[name].detach() for each in named]).requires_grad_() for name in named[0]}
        self.count = len(models)

    def forward(self, images: Images) -> Logits:
        """Map images, (S * B, channels, height, width), to logits, (S * B, classes)."""
        with _OneForAll(self.count, len(images) // self.count, self.stacks.values()):
            logits: Logits = functional_call(self.frame, self.stacks, (images,))
        return logits


def _draws(module: nn.Module) -> bool:
    """Whether a layer draws in training: dropout (`p`), drop path (`rate`), or attention that draws noise or blocks."""
    return any(getattr(module, name, 0) for name in ("p", "rate", "stochastic"))


class _OneForAll(TorchFunctionMode):
    """Runs an operation on a parameter of one model as that of all models.

    Args:
        count: S, of models.
        each: B, images of a model.
        stacks: the parameters, (S, ...).
    """

    def __init__(self, count: int, each: int, stacks: Collection[Tensor]) -> None:
        super().__init__()
        self.count, self.each = count, each
        self.stacks = {id(stack) for stack in stacks}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the layers of `_LAYERS` at once; repeat other parameters, (S, 1, ...), to (S * B, ...)."""
        named = dict(kwargs or {})
        if not any(id(value) in self.stacks for value in (*args, *named.values())):
            return func(*args, **named)
        if func in _LAYERS:
            return _LAYERS[func](self.count, *args, **named)
        return func(*map(self._rows, args), **{name: self._rows(value) for name, value in named.items()})

    def _rows(self, value: Any) -> Any:
        if id(value) not in self.stacks:
            return value
        if value.shape[1] != 1:
            raise BadInputError(
                f"several models at once with a parameter of shape {tuple(value.shape[1:])} outside a layer",
                expected="such as those of linear layers, layer norms and convolutions",
            )
        return value.flatten(0, 1).repeat_interleave(self.each, 0)


def _linear(count: int, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = x.reshape(count, -1, x.shape[-1])
    out = torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
    return out.view(*x.shape[:-1], -1)


def _layer_norm(
    count: int, x: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    rows = F.layer_norm(x, shape, eps=eps).unflatten(0, (count, -1))
    place = (count, *(1,) * (x.ndim - len(shape)), *shape)
    scaled = rows * weight.view(place) if bias is None else torch.addcmul(bias.view(place), rows, weight.view(place))
    return scaled.flatten(0, 1)


def _conv2d(
    count: int, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """Convolve (S * B, c, h, w): the channels of all models side by side, (B, S * c, h, w), in groups of their own."""
    side = x.unflatten(0, (count, -1)).transpose(0, 1).flatten(1, 2)
    flat = None if bias is None else bias.flatten()
    out = F.conv2d(
        side, weight.flatten(0, 1), flat, stride=stride, padding=padding, dilation=dilation, groups=count * groups
    )
    split: Tensor = out.unflatten(1, (count, -1)).transpose(0, 1).flatten(0, 1)
    return split


_LAYERS: dict[Any, Callable[..., Tensor]] = {F.linear: _linear, F.layer_norm: _layer_norm, F.conv2d: _conv2d}


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
        for what, is_used in unfit.items():
            if is_used:
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
        for run, numbers in zip(self.runs, sums, strict=True):
            run.close(number, numbers)

    def _step(self, batch: Batch, images: int, number: int) -> tuple[Tensor, Tensor]:
        losses, logits = self.objective(self.model, batch, number)
        for group, own_group in zip(self.optimizer.param_groups, self.first.optimizer.param_groups, strict=True):
            group["lr"] = own_group["lr"]
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
            for own_group, group in zip(run.optimizer.param_groups, self.optimizer.param_groups, strict=True):
                own_group["lr"] = group["lr"]
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
