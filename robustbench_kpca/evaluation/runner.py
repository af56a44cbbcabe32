"""The one place where a model is called: always at one batch size, without touching its parameters."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from robustbench_kpca.errors import BadInputError, BenchmarkError, EvaluationError
from robustbench_kpca.types import Images, Logits, Loss, PerSample


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Switch the parameters' gradients off, and back to what they were."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for parameter, _ in before:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter, needed in before:
            parameter.requires_grad_(needed)


class Runner:
    """Runs `model` on at most `batch_size` images at a time, filled up to exactly `batch_size`.

    Matrix kernels choose their order of summation by shape, so only equal batch sizes give equal bits; a sample's row
    in the batch does not matter.
    """

    def __init__(self, model: nn.Module, batch_size: int, device: torch.device) -> None:
        if any(module.training for module in model.modules()):
            raise BadInputError("the model, or a part of it, is in training mode", fix="call model.eval() first")
        if any(getattr(module, "stochastic", False) for module in model.modules()):
            raise BadInputError(
                "the model draws noise at test time, so that no pass can be repeated",
                expected="a deterministic forward pass; expectation over transformation is not supported yet",
            )
        if batch_size < 1:
            raise BadInputError(f"batch size {batch_size}", expected="at least 1")
        self.model, self.batch_size, self.device = model, batch_size, device
        self.classes: int | None = None

    def logits(self, x: Images) -> Logits:
        """One forward pass."""
        with torch.no_grad():
            return self._call(x)

    def gradient(self, x: Images, loss: Loss) -> tuple[PerSample, Images, Logits]:
        """One forward and one backward pass: per-sample losses, their gradients with respect to `x`, and the logits."""
        with torch.inference_mode(mode=False), torch.enable_grad():
            x = x.detach().clone().requires_grad_()
            logits = self._call(x)
            losses = loss(logits)
            try:
                (gradient,) = torch.autograd.grad(losses.sum(), x)
            except RuntimeError as error:
                raise _failure("the model cannot be differentiated", error) from error
        return losses.detach(), gradient, logits.detach()

    def _call(self, x: Images) -> Logits:
        count = len(x)
        if count < self.batch_size:
            x = torch.cat([x, x[-1:].detach().expand(self.batch_size - count, *x.shape[1:])])
        try:
            logits = self.model(x)
        except BenchmarkError:
            raise
        except Exception as error:  # foreign code
            raise _failure(f"the model failed on images of shape {tuple(x.shape)} and {x.dtype}", error) from error
        if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x):
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise BadInputError(f"the model returned {shape}", expected=f"logits of shape ({len(x)}, classes)")
        if self.classes is None:
            self.classes = logits.shape[1]
        return logits[:count].float()


def _failure(what: str, error: Exception) -> BenchmarkError:
    lines = str(error).strip().splitlines()
    text = f"{what} ({type(error).__name__}: {lines[0][:120] if lines else 'no message'})"
    if isinstance(error, torch.OutOfMemoryError):
        return EvaluationError(text, fix="choose a smaller --batch-size")
    return BadInputError(text, fix="check that model and data belong together")
