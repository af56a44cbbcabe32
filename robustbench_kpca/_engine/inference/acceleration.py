"""How a model is computed on a device: compiled or not, and how exact products of single precision are.

Both change the last bits of logits, so both are explicit, off by default, and written into records.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError

_active: list[str | None] = []


def compiled_as() -> str | None:
    """Return the mode in which models are compiled now, for records."""
    return _active[-1] if _active else None


def float32_products() -> str:
    """Return how exact products of single precision are now on a CUDA device, for records."""
    matmul, conv, _ = _places()
    return f"matmul {_name(matmul)}, conv {_name(conv)}"


@contextmanager
def accelerated(models: Iterable[nn.Module], compile: str | None, *, tf32: bool) -> Iterator[None]:  # noqa: A002
    """Run models compiled, and with less exact products; at the end everything is as before.

    The models are changed in place, so that all code that calls them calls the compiled function.

    Args:
        models: the models.
        compile: mode of `torch.compile`; None: not compiled. `reduce-overhead` and `max-autotune` replay CUDA graphs
            on a CUDA device.
        tf32: whether products of single precision on a CUDA device may be rounded to TF32 (10 bits of mantissa).
    """
    with ExitStack() as stack:
        stack.enter_context(products("tf32" if tf32 else "ieee"))
        if compile is not None:
            for model in models:
                stack.enter_context(_compiled(model, compile))
        _active.append(compile)
        stack.callback(_active.pop)
        yield


@contextmanager
def products(precision: str) -> Iterator[None]:
    """Set the precision of products and convolutions, `ieee` or `tf32`; torch's default rounds convolutions to TF32."""
    before = [place.fp32_precision for place in _places()]
    try:
        _set_products([precision] * len(before))
        yield
    finally:
        _set_products(before)


def _set_products(precisions: list[str]) -> None:
    """Set torch's older switches, too: its compiler reads them, and they cannot be read where the two disagree."""
    torch.backends.cuda.matmul.allow_tf32 = precisions[0] == "tf32"
    torch.backends.cudnn.allow_tf32 = precisions[1] == "tf32"
    for place, precision in zip(_places(), precisions, strict=True):
        place.fp32_precision = precision


def _places() -> tuple[Any, Any, Any]:
    """Return torch's settings of matrix products, convolutions and recurrent layers."""
    backends: Any = torch.backends  # some of them are made at run time, so torch's types do not name them
    return backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn


def _name(place: Any) -> str:
    return "tf32" if place.fp32_precision == "tf32" else "ieee"


@contextmanager
def _compiled(model: nn.Module, mode: str) -> Iterator[None]:
    """Replace `model.forward`. Graphs reuse their outputs' memory, so logits and gradients are copied out of it."""
    if "forward" in vars(model):
        raise BadInputError(f"{type(model).__name__} has a forward of its own instance", fix="leave compile out")
    forward: Callable[..., Tensor] = torch.compile(model.forward, mode=mode, dynamic=False)

    def copying(x: Tensor, **how: Any) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return forward(_CopyGradient.apply(x), **how).clone()

    model.forward = copying
    try:
        yield
    finally:
        del model.forward


class _CopyGradient(torch.autograd.Function):
    """The identity; its gradient is a copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        return gradients[0].clone()
