"""Go back through convolutions of patches as matrix products, where these were seen to give the same bits.

A convolution whose stride is its kernel, such as the first layer of most transformers, shows every value to one patch.
So its gradient by the image is G W, of G (patches, features) and W (features, values of a patch). oneDNN takes longer
for it on a CPU. Where both sum in one order all bits are equal. The first gradient of a shape is computed both ways.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from robustbench_kpca._engine.inference.fewer_rows import ENOUGH

Sides = int | Sequence[int]
_EQUAL: dict[tuple[Any, ...], bool] = {}
"""Shapes, and what else the order of a sum depends on -> whether the product has the bits of the convolution."""


class PatchGradients(TorchFunctionMode):
    """While it is entered, gradients of what is shown to frozen weights go back as products."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch."""
        return (_convolved if func is torch.conv2d else func)(*args, **(kwargs or {}))


def _convolved(
    input: Tensor,  # noqa: A002 (torch's names)
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sides = 1,
    padding: Sides | str = 0,
    dilation: Sides = 1,
    groups: int = 1,
) -> Tensor:
    """Return what `torch.conv2d` returns."""
    kernel = tuple(weight.shape[2:])
    cuts = (_pair(stride), _pair(padding), _pair(dilation), groups) == (kernel, (0, 0), (1, 1), 1)
    whole = input.ndim == 4 and all(side % part == 0 for side, part in zip(input.shape[2:], kernel, strict=True))
    fixed = input.requires_grad and not any(each is not None and each.requires_grad for each in (weight, bias))
    usual = input.is_cpu and input.dtype == weight.dtype and not torch.is_autocast_enabled("cpu")
    if cuts and whole and fixed and usual and not torch._C._are_functorch_transforms_active():  # noqa: SLF001
        return _Patches.apply(input, weight, bias)  # type: ignore[no-any-return]
    return torch.conv2d(input, weight, bias, stride, padding, dilation=dilation, groups=groups)


def _pair(sides: Sides | str) -> tuple[Any, ...]:
    return (sides, sides) if isinstance(sides, int) else tuple(sides)


class _Patches(torch.autograd.Function):
    """Forward, return the answer of the convolution; backward, its gradient by the image."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)  # as the convolution does, whose place this takes in a checkpoint
        return torch.conv2d(x, weight, bias, weight.shape[2:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, weight = ctx.saved_tensors
        order = torch.get_num_threads(), torch.backends.mkldnn.enabled, torch.are_deterministic_algorithms_enabled()
        shapes = (x.shape, x.stride(), weight.shape, gradient.stride(), x.dtype, *order)
        if equal := _EQUAL.get(shapes):
            return product(gradient, weight, x), None, None
        how = {"stride": weight.shape[2:], "padding": (0, 0), "dilation": (1, 1), "output_padding": (0, 0)}
        flags = {"transposed": False, "groups": 1, "bias_sizes": None, "output_mask": (True, False, False)}
        usual = torch.ops.aten.convolution_backward(gradient, x, weight, **how, **flags)[0]
        filled = int(gradient.count_nonzero())  # sums of few numbers are equal in any order
        if equal is None and filled >= max(ENOUGH, gradient.numel() // 4):
            _EQUAL[shapes] = torch.equal(product(gradient, weight, x), usual)
        return usual, None, None


def product(gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    """Return G W, every patch at its place."""
    patches = gradient.permute(0, 2, 3, 1).reshape(-1, len(weight)) @ weight.flatten(1)
    return patches.view(len(x), *gradient.shape[2:], *weight.shape[1:]).permute((0, 3, 1, 4, 2, 5)).reshape(x.shape)
