"""The attention maps of a model, seen to be its own: in every layer, the matrix A with which it mixes its values V.

Fused kernels return no map and call no hook on one. So A is computed beside the pass, and refused unless A V is what
the layer made of V.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._engine.attack_loop.attention_loss import layers_with_keys
from robustbench_kpca._engine.attack_loop.targets import token_side
from robustbench_kpca.attention.rpc import Iterate, Pursuit
from robustbench_kpca.attention.shared.heads import Heads, MultiHeadAttention, merge_heads, split_heads
from robustbench_kpca.attention.shared.weights import WeightedAttention, hidden
from robustbench_kpca.types import AttentionMaps, Images

Map: TypeAlias = Float[Tensor, "batch heads token token"]
Rule: TypeAlias = Callable[[Map], Map]
TIMMS = ("qkv", "proj", "scale", "num_heads")
"""What a layer of timm has whose map is softmax(scale Q K^T)."""


def attention_layers(model: Any) -> list[Any]:
    """Return the layers whose maps can be read, in the model's order.

    Raises:
        BadInputError: there are none, or there is one of another kind with queries and keys.
    """
    layers: list[Any] = layers_with_keys(model) if isinstance(model, nn.Module) else []
    odd = [layer for layer in layers if not isinstance(layer, MultiHeadAttention) and not _is_timms(layer)]
    if odd or not layers:
        raise _unreadable(f"layers of type {type(odd[0]).__name__}" if odd else "no attention with q_norm and k_norm")
    return layers


@contextmanager
def mapped(model: Any, rule: Rule | None = None) -> Iterator[list[Map]]:
    """Keep the maps of the layers in the last pass of a model; with `rule`, layers mix their values with rule(A).

    A is of RPC the softmax of the last iteration; of attention with weights what it makes of them and the unit matrix;
    of other attention of the package, what it makes of the unit matrix in place of V; of timm's, softmax(scale Q K^T).

    Raises:
        BadInputError: as `attention_layers`; or A V is not what a layer made of V, up to rounding; or a layer did not
            run, as far as can be seen from outside.
    """
    layers = attention_layers(model)
    maps: list[Map] = [torch.empty(0)] * len(layers)

    def mixed(number: int, a: Map, v: Heads, out: Heads) -> Heads:
        slack = torch.finfo(out.dtype).eps ** 0.5
        with torch.no_grad():
            same = a.shape[-1] == v.shape[-2] and bool((a @ v - out).norm() <= slack * out.norm())
        if not same:
            raise _unreadable(f"{type(layers[number]).__name__}, which makes something else of V than A V")
        maps[number] = a
        return out if rule is None else rule(a) @ v

    undo: list[Callable[[], None]] = []
    try:
        for number, layer in enumerate(layers):
            watch = _watch_own if isinstance(layer, MultiHeadAttention) else _watch_timms
            undo += watch(layer, partial(mixed, number))
        yield maps
        if not all(a.numel() for a in maps):
            raise _unreadable("layers that no pass is seen to run through")
    finally:
        for step in undo:
            step()


def by_cells(maps: list[Tensor], x: Images, model: nn.Module) -> AttentionMaps:
    """Return the mean over heads of what every query gives to the cells of the images x, the first of a batch.

    Raises:
        BadInputError: the model states no size of its tokens, or a layer has fewer tokens than the image has cells.
        EvaluationError: the batch did not fit into memory at once.
    """
    side = token_side(model)
    if side is None:
        raise BadInputError("attention maps of a model that states no size of its tokens", expected="a `patch_size`")
    rows, columns = x.shape[2] // side, x.shape[3] // side
    if any(len(a) < len(x) for a in maps):
        raise EvaluationError("attention maps of part of a batch", fix="give a smaller --batch-size")
    if any(a.shape[-1] < rows * columns for a in maps):
        raise BadInputError("attention maps of layers with fewer tokens than the image has cells")
    return [a[: len(x)].mean(1)[..., -rows * columns :].unflatten(-1, (rows, columns)) for a in maps]


def _is_timms(layer: nn.Module) -> bool:
    return all(hasattr(layer, name) for name in TIMMS)


def _unreadable(met: str) -> BadInputError:
    return BadInputError(f"attention maps of {met}", expected="a model whose attention is A V, such as softmax and RPC")


def _watch_own(layer: Any, mixed: Callable[[Map, Heads, Heads], Heads]) -> list[Callable[[], None]]:
    """Let a layer of the package hand on what `mixed` returns."""
    attend, outer = layer.attend, vars(layer).get("attend")

    def watched(q: Heads, k: Heads, v: Heads, **how: Any) -> Heads:
        if not isinstance(getattr(layer, "pursuit", None), Pursuit):
            out = attend(q, k, v, **how)
            return mixed(_map(layer, attend, q, k, how), v, out)
        steps: list[Iterate] = []
        before, layer.observer = layer.observer, steps.append
        try:
            out = attend(q, k, v, **how)
        finally:
            layer.observer = before
        last = steps[-1]
        scores = last.query @ last.inner.transpose(-2, -1) * last.inner.shape[-1] ** -0.5
        return mixed(hidden(scores, causal=last.causal, mask=last.mask).softmax(-1), v, out)

    layer.attend = watched
    return [partial(delattr, layer, "attend") if outer is None else partial(setattr, layer, "attend", outer)]


def _map(layer: Any, attend: Callable[..., Heads], q: Heads, k: Heads, how: dict[str, Any]) -> Map:
    """Mix the unit matrix, as many of its columns at once as values have channels."""
    tokens, width = k.shape[-2:]
    unit = torch.eye(tokens, -(-tokens // width) * width, device=k.device, dtype=k.dtype)
    parts = [part.expand(*k.shape).contiguous() for part in unit.split(width, -1)]
    try:
        if isinstance(layer, WeightedAttention):
            weights = layer.weights(q, k, **how)
            mixed = [layer.mixed(weights, part) for part in parts]
        else:
            mixed = [attend(q, k, part, **how) for part in parts]
    except (RuntimeError, TypeError) as error:
        raise _unreadable(type(layer).__name__) from error
    return torch.cat(mixed, -1)[..., :tokens]


def _watch_timms(layer: Any, mixed: Callable[[Map, Heads, Heads], Heads]) -> list[Callable[[], None]]:
    """Let a layer of timm project what `mixed` returns."""
    seen: dict[str, Tensor] = {}

    def note(name: str, module: nn.Module, given: object, out: Tensor) -> None:  # noqa: ARG001
        seen[name] = out

    def project(module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:  # noqa: ARG001
        q, k, v = seen["q_norm"], seen["k_norm"], split_heads(seen["qkv"], 3, layer.num_heads)[2]
        a = (q @ k.transpose(-2, -1) * layer.scale).softmax(-1)
        if given[0].numel() != v.numel():
            raise _unreadable(type(layer).__name__)
        out = given[0].unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        return (merge_heads(mixed(a, v, out)),)

    names = ("qkv", "q_norm", "k_norm")
    hooks = [getattr(layer, name).register_forward_hook(partial(note, name)) for name in names]
    return [hook.remove for hook in [*hooks, layer.proj.register_forward_pre_hook(project)]]
