"""The edge of the box: a model that has slope 0 at values of exactly 0 or 1 gets its gradients from just inside.

A first operation that is the identity on [0, 1], such as `x.clamp(0, 1)` or relu, may have slope 0 at its bounds. No
answer depends on that, but attacks are blind where an image is black or white.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca._engine.inference.runner import Presentation
from robustbench_kpca.types import Images, Logits, Loss, PerSample

NUDGE = 1e-4  # how far inside gradients are taken
BLIND = 0.05  # share of the values at 0, or at 1, that lack a slope there and have one inside: more is no coincidence


class Through(torch.autograd.Function):
    """Forward, return `value`; backward, pass the gradient to `through`."""

    @staticmethod
    def forward(ctx: Any, through: Tensor, value: Tensor) -> Tensor:  # noqa: ARG004
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return gradient, None


def inside(x: Images) -> Images:
    """Move values that are less than `NUDGE` from 0 or from 1 to that distance inside; the others stay."""
    off_black = torch.where(x.abs() < NUDGE, NUDGE, x)
    return torch.where((x - 1).abs() < NUDGE, 1 - NUDGE, off_black)


def gradients_inside(presentation: Presentation) -> Presentation:
    """Return a presentation with the same answers, whose gradients are those of the model at `inside(x)`.

    The loss sees the true answers. A gradient takes one more forward pass, which is not counted as one of the attack's.
    A model that draws noise draws the same for both passes.
    """

    def show(model: nn.Module, x: Images) -> Any:
        if not (x.requires_grad and torch.is_grad_enabled()):
            return presentation.show(model, x)
        with torch.no_grad(), torch.random.fork_rng([x.device] if x.is_cuda else []):
            logits = presentation.show(model, x)
        return Through.apply(presentation.show(model, Through.apply(x, inside(x.detach()))), logits)

    return replace(presentation, show=show, inside=True)


def is_blind(gradient: Callable[[Images, Loss], tuple[PerSample, Images, Logits]], x: Images) -> bool:
    """Tell whether values of x that are exactly 0 or 1 lack a slope that they have just inside.

    Args:
        gradient: returns losses, gradients and logits. It is called with the gap between the two largest logits
            as the loss, which no softmax rounds to zero, and a second time only if slopes are zero at the edge.
        x: images, some of whose values are at the edge.
    """
    edges = [x == 0, x == 1]
    zero = gradient(x, _gap)[1] == 0
    if not any(bool((edge & zero).any()) for edge in edges):
        return False
    lacks_slope = zero & (gradient(inside(x), _gap)[1] != 0)
    return any(int((edge & lacks_slope).sum()) > BLIND * int(edge.sum()) for edge in edges)


def _gap(logits: Logits) -> PerSample:
    largest = logits.topk(2, dim=1).values
    return (largest[:, 0] - largest[:, 1]).reshape(len(logits), -1).sum(1)
