"""Modes of a model: evaluation mode is required, weights need no gradient, and afterwards all is as it was before.

Tensors made under `torch.inference_mode()` can be evaluated, but no gradient passes them.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError

_LOG = logging.getLogger("robustbench_kpca")


def require_evaluation_mode(model: nn.Module) -> None:
    """Refuse a model of which anything is in training mode, and name what is.

    Raises:
        BadInputError: the model, or one of its modules, is in training mode.
    """
    training = [(name, module) for name, module in model.named_modules() if module.training]
    if not training:
        return
    name, module = training[0]  # the model itself has no name
    which = (
        f"module '{name}' of the model ({type(module).__name__})" if name else f"the model ({type(module).__name__})"
    )
    more = f" and {len(training) - 1} more" if name and len(training) > 1 else ""
    raise BadInputError(f"{which}{more} in training mode", expected="evaluation mode", fix="call model.eval() first")


def ordinary(x: Tensor) -> Tensor:
    """Return x, or a copy that gradients can pass if x was made under `torch.inference_mode()`."""
    with torch.inference_mode(mode=False):
        return x.detach().clone() if x.is_inference() else x


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Let no parameter need a gradient, and let gradients pass all of them; at the end everything is as before.

    Copies stand in for parameters and buffers that were made under `torch.inference_mode()`. What cannot be put back is
    warned of: an error would lose the result.
    """
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters() if not parameter.is_inference()]
    places = [(values, name) for module in model.modules() for values in _tensors_of(module) for name in values]
    inference_tensors = [(values, name, values[name]) for values, name in places if _is_inference(values[name])]
    copies = {id(tensor): _copied(tensor) for _, _, tensor in inference_tensors}
    try:
        for parameter, _ in before:
            parameter.requires_grad_(False)
        for values, name, tensor in inference_tensors:
            values[name] = copies[id(tensor)]
        yield
    finally:
        for values, name, tensor in inference_tensors:
            values[name] = tensor
        unrestored = sum(not _restored(parameter, needed=needed) for parameter, needed in before)
        if unrestored:
            _LOG.warning("warning: requires_grad of %d parameters of the model cannot be put back", unrestored)


def _tensors_of(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    return module._parameters, module._buffers  # noqa: SLF001 (torch has no public way to replace one)


def _is_inference(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.is_inference()


def _copied(tensor: Tensor) -> Tensor:
    copy = ordinary(tensor)
    return nn.Parameter(copy, requires_grad=False) if isinstance(tensor, nn.Parameter) else copy


def _restored(parameter: nn.Parameter, *, needed: bool) -> bool:
    try:
        parameter.requires_grad_(needed)
    except RuntimeError:  # the model has made it the result of an operation
        return False
    return True


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Put back at the end what passes in training mode write: running means, numbers of batches."""
    before = [
        (module._buffers, name, buffer, buffer.clone())  # noqa: SLF001 (a pass may put another tensor in its place)
        for module in model.modules()
        if module.training
        for name, buffer in module._buffers.items()  # noqa: SLF001
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffers, name, buffer, values in before:
                buffers[name] = buffer.copy_(values)
