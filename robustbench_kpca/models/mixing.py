"""What the pursuits of RPC attention do in a model: how dense S is, what attends to what, and fewer iterations.

`rbk diagnose` has the statistics by iteration (`study/diagnostics/pursuits.py`).
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca.attention.rpc import Iterate, Pursuit
from robustbench_kpca.attention.shared.heads import Heads
from robustbench_kpca.models.altered import altered
from robustbench_kpca.types import Images


def density(iterate: Iterate) -> float:
    """Return the share of entries of S that are not zero; padding has no part in it."""
    sparse = iterate.sparse
    real = sparse if iterate.mask is None else sparse.transpose(1, 2)[iterate.mask[:, 0, 0]]
    return float((real != 0).double().mean())


def attention_weights(query: Heads, keys: Heads) -> Tensor:
    """Return softmax(Q K^T / sqrt(D)), (batch, heads, tokens, tokens)."""
    scores: Tensor = query.double() @ keys.double().transpose(-2, -1) / keys.shape[-1] ** 0.5
    return scores.softmax(-1)


@torch.no_grad()
def densities(model: nn.Module, images: Images) -> list[float]:
    """Return the density of S in the last iteration of every RPC layer, the one that its output is computed from."""
    with watched(model) as observed:
        model(images)
    return list({layer: share for layer, _, share in observed}.values())


@contextmanager
def watched(model: nn.Module) -> Iterator[list[tuple[int, int, float]]]:
    """Yield a list that gets RPC layer, iteration and density of S of every iteration that is made while it lasts."""
    observed: list[tuple[int, int, float]] = []
    layers = rpc_layers(model)
    for number, layer in enumerate(layers):
        layer.observer = lambda iterate, number=number: observed.append((number, iterate.iteration, density(iterate)))
    try:
        yield observed
    finally:
        for layer in layers:
            layer.observer = None


@contextmanager
def at_most(model: nn.Module, iterations: int) -> Iterator[nn.Module]:
    """Limit the iterations of every pursuit of `model`; at the end of the context the old numbers are restored."""
    with altered(model, f"iterations={iterations}") if rpc_layers(model) else nullcontext(model) as changed:
        yield changed


def rpc_layers(model: nn.Module) -> list[Any]:
    """Return the modules that run a pursuit, in the model's order."""
    return [module for module in model.modules() if isinstance(getattr(module, "pursuit", None), Pursuit)]
