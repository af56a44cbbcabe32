"""Several models of one architecture as one, so that a device runs them at once: a layer is one operation for all."""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.types import Images, Logits


class Stacked(nn.Module):
    """S models as one: of S * B images, the first B go through the first model, the next B through the second.

    Each parameter of the models becomes one with a first dimension of S. Linear layers, layer norms and convolutions
    run as one operation for all. Any other parameter must have a first dimension of 1, and is repeated for the images
    of its model. All else sees a larger batch. Logits are those of the models, but for rounding.

    Args:
        models: of one architecture, on one device.

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
        self.stacks = {name: torch.stack([own[name].detach() for own in named]).requires_grad_() for name in named[0]}
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
    apart: Tensor = out.unflatten(1, (count, -1)).transpose(0, 1).flatten(0, 1)
    return apart


_LAYERS: dict[Any, Callable[..., Tensor]] = {F.linear: _linear, F.layer_norm: _layer_norm, F.conv2d: _conv2d}
