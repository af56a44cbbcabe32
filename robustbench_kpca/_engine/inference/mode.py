"""Training mode: a model in it, or with a module in it, is not evaluated; what passes in it write is put back."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from robustbench_kpca._core.errors import BadInputError


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
