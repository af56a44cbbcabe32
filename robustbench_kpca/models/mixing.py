"""Statistics of every iteration of RPC attention: how sparse S is, and how far tokens attend to other tokens.

Padding has no part in them.

The output of an iteration of the pursuit enters the softmax of the next. For many keys, in the end every token attends
only to itself. The statistics show this for trained models and for random keys.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.attention.rpc import Iterate, Pursuit
from robustbench_kpca.attention.shared.heads import Heads, KeyMask
from robustbench_kpca.models.altered import altered
from robustbench_kpca.types import Images, Labels

T = TypeVar("T")


@dataclass(frozen=True)
class Mixing:
    """One iteration of one layer, averaged over images, heads and tokens; iteration 0 is plain attention.

    Attributes:
        block: number of the layer among the RPC layers of the model.
        iteration: its number.
        density: share of entries of S that are not zero.
        residual: ||K - L - S||_F / ||K||_F: 0 where L + S = K.
        max_attention: mean over tokens of the largest attention weight.
        diagonal: mean attention of a token to itself; 1 means that tokens do not mix.
        entropy: of a token's attention, in nats: log(tokens) for uniform attention, 0 for attention to one token.
        value_distance: ||L - V||_F / ||V||_F: 0 where the output is the values.
    """

    block: int
    iteration: int
    density: float
    residual: float
    max_attention: float
    diagonal: float
    entropy: float
    value_distance: float


def density(iterate: Iterate) -> float:
    """Return the share of entries of S that are not zero."""
    return float((_real(iterate, iterate.sparse) != 0).double().mean())


@torch.no_grad()
def mixing(iterate: Iterate, block: int = 0) -> Mixing:
    """Measure one iterate; for this the (tokens, tokens) attention matrix is built."""
    weights = attention_weights(iterate.query, iterate.inner, causal=iterate.causal, mask=iterate.mask)
    real = partial(_real, iterate)
    k, v, low_rank, sparse = (real(x) for x in (iterate.k, iterate.v, iterate.low_rank, iterate.sparse))
    return Mixing(
        block,
        iterate.iteration,
        density=density(iterate),
        residual=float((k - low_rank - sparse).norm() / k.norm()),
        max_attention=float(real(weights).amax(-1).mean()),
        diagonal=float(real(weights.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)).mean()),
        entropy=float(torch.special.entr(real(weights)).sum(-1).mean()),
        value_distance=float((low_rank - v).norm() / v.norm()),
    )


def _real(iterate: Iterate, x: Tensor) -> Tensor:
    """Return the rows of (batch, heads, tokens, width) that are no padding, (rows, heads, width); all as they are."""
    return x if iterate.mask is None else x.transpose(1, 2)[iterate.mask[:, 0, 0]]


def attention_weights(query: Heads, keys: Heads, *, causal: bool = False, mask: KeyMask | None = None) -> Tensor:
    """Return softmax(Q K^T / sqrt(D)), (batch, heads, tokens, tokens); keys outside `mask` are not attended to."""
    scores = query.double() @ keys.double().transpose(-2, -1) / keys.shape[-1] ** 0.5
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights: Tensor = scores.softmax(-1)
    return weights


def trace_pursuit(pursuit: Pursuit, k: Heads, v: Heads, block: int = 0) -> list[Mixing]:
    """Run a pursuit on keys and values; return the statistics of iterations 0 to n."""
    mixings: list[Mixing] = []
    for run in (replace(pursuit, iterations=0), pursuit):
        run(k, v, observer=lambda iterate: mixings.append(mixing(iterate, block)))
    return mixings


def trace_model(model: nn.Module, images: Images) -> list[Mixing]:
    """Run `images` through `model`; return the statistics of iterations 1 to n of every RPC layer."""
    return observe(model, images, mixing)


def densities(model: nn.Module, images: Images) -> list[float]:
    """Return the density of S in the last iteration of every RPC layer, the one that its output is computed from."""
    return list(dict(observe(model, images, lambda iterate, block: (block, density(iterate)))).values())


@torch.no_grad()
def observe(model: nn.Module, images: Images, measure: Callable[[Iterate, int], T]) -> list[T]:
    """Run `images` through `model`; return measure(iterate, block) of every iterate of every RPC layer, in order."""
    measured: list[T] = []
    layers = rpc_layers(model)
    for block, layer in enumerate(layers):
        layer.observer = lambda iterate, block=block: measured.append(measure(iterate, block))
    try:
        model(images)
    finally:
        for layer in layers:
            layer.observer = None
    return measured


def gradient_norms(model: nn.Module, images: Images, labels: Labels) -> list[float]:
    """Return the mean L2 norm of the gradient of the loss by the image, for 0, 1, ... up to the model's own iterations.

    The loss is the cross-entropy, which attacks maximise. The weights are those trained with the model's own number.
    """
    most = max((layer.pursuit.iterations for layer in rpc_layers(model)), default=0)
    return [_gradient_norm(model, images, labels, iterations) for iterations in range(most + 1)]


def _gradient_norm(model: nn.Module, images: Images, labels: Labels, iterations: int) -> float:
    with at_most(model, iterations):
        x = images.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), labels, reduction="sum"), x)
    return float(gradient.flatten(1).norm(dim=1).mean())


@contextmanager
def at_most(model: nn.Module, iterations: int) -> Iterator[nn.Module]:
    """Limit the iterations of every pursuit of `model`; at the end of the context the old numbers are restored."""
    with altered(model, f"iterations={iterations}") if rpc_layers(model) else nullcontext(model) as changed:
        yield changed


def rpc_layers(model: nn.Module) -> list[Any]:
    """Return the modules that run a pursuit, in the model's order."""
    return [module for module in model.modules() if isinstance(getattr(module, "pursuit", None), Pursuit)]
