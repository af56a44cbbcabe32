"""Other gradients of attention, `pna` and `tgr`, for images that are to break other models; answers do not change."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.attention_maps import Map, attention_layers, mapped

ATTENTION, PROJECTION, MLP = 0.25, 0.75, 0.5
"""What TGR multiplies gradients with: of a map, of the tokens that are projected to Q, K and V, and of a perceptron."""
Tokens = Float[Tensor, "batch token channel"]


@contextmanager
def pna(model: nn.Module) -> Iterator[nn.Module]:
    """Let gradients pay no attention: every map A is a constant in the backward pass.

    Wei, Chen, Goldblum, Wu, Goldstein & Jiang (2022), "Towards Transferable Adversarial Attacks on Vision
    Transformers", arXiv:2109.04176, section 3.2. Their other part, PatchOut, is not here.

    Raises:
        BadInputError: maps cannot be read, or none depends on the image, so that the gradient would stay as it was.
    """
    depends: list[bool] = []

    def constant(a: Map) -> Map:
        depends.append(a.requires_grad)
        return a.detach()

    with mapped(model, constant):
        yield model
    if torch.is_grad_enabled() and not any(depends):
        raise BadInputError("backward_of = 'pna' for attention that does not depend on the image: it changes nothing")


@contextmanager
def tgr(model: nn.Module) -> Iterator[nn.Module]:
    """Regularise the gradients of tokens: scale them, and leave out the extreme ones.

    Zhang, Huang, Wang, Li, Wang, Lyu & Su (2023), "Transferable Adversarial Attacks on Vision Transformers with Token
    Gradient Regularization", arXiv:2303.15754, section 3.3, and the authors' program: the gradient of each head's map
    without the rows and columns of its largest and smallest entry, times 0.25; that of the tokens that a layer projects
    and of those that a perceptron takes, without the largest and the smallest of every channel, times 0.75 and 0.5.
    Extremes are those of each image; the program takes those of the first image of a batch for all.

    Raises:
        BadInputError: maps cannot be read, or there is a layer without projection, or no perceptron.
    """
    hooks = []
    projections: list[Any] = [
        getattr(layer, getattr(layer, "projection", "qkv"), None) for layer in attention_layers(model)
    ]
    perceptrons: list[Any] = [module.mlp for module in model.modules() if hasattr(module, "mlp")]
    if None in projections or not perceptrons:
        raise BadInputError("tgr for a model without projections `qkv` or perceptrons `mlp`", expected="as in timm")
    for modules, factor in ((projections, PROJECTION), (perceptrons, MLP)):

        def before(module: nn.Module, given: tuple[Tensor], factor: float = factor) -> tuple[Tensor]:  # noqa: ARG001
            return (_hooked(given[0], lambda gradient: factor * without_extremes(gradient)),)

        hooks += [module.register_forward_pre_hook(before) for module in modules]
    try:
        with mapped(model, lambda a: _hooked(a, _without_crosses)):
            yield model
    finally:
        for hook in hooks:
            hook.remove()


RULES: dict[str, Callable[[nn.Module], AbstractContextManager[nn.Module]]] = {"pna": pna, "tgr": tgr}


def without_extremes(gradient: Tokens) -> Tokens:
    """Set the largest and the smallest entry of every channel to 0."""
    ends = [gradient.argmax(1, keepdim=True), gradient.argmin(1, keepdim=True)]
    return gradient.scatter(1, torch.cat(ends, 1), 0)


def _without_crosses(gradient: Map) -> Map:
    """Set the rows and columns of the largest and the smallest entry of every head to 0, and scale the rest."""
    flat, kept = gradient.flatten(2), torch.ones_like(gradient)
    for at in (flat.argmax(2), flat.argmin(2)):
        row, column = at // gradient.shape[3], at % gradient.shape[3]
        kept = kept.scatter(2, row[..., None, None].expand(-1, -1, 1, gradient.shape[3]), 0)
        kept = kept.scatter(3, column[..., None, None].expand(-1, -1, gradient.shape[2], 1), 0)
    return ATTENTION * gradient * kept


def _hooked(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return x, whose gradient through here is changed."""
    if not x.requires_grad:
        return x
    same = x.view_as(x)
    same.register_hook(change)
    return same
