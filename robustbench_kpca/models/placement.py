"""Replace the attention of chosen blocks of a model, or of its weights; parameters that fit are kept."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.attention.shared.chain import chain
from robustbench_kpca.attention.shared.heads import MultiHeadAttention


def place(model: nn.Module, attention: str | type[nn.Module], layers: Any = "all", **options: Any) -> nn.Module:
    """Replace the attention of chosen layers of a transformer (timm's ViT or any of the project's); return the model.

    Parameters that fit are kept. Where the new attention has no Q, the rows of K and V are kept from Q, K and V.

    Args:
        model: with `blocks[i].attn`, or an `encoder` that has them. Where it has `causal = True`, attentions with such
            an option get it.
        attention: a name of `robustbench_kpca.attention`, the address of a class such as `my.py:MyAttention`, or the
            class itself.
        layers: `"first"`, `"quarter"` (the first quarter, at least one), `"last"`, `"all"`, or block indices.
        **options: options of the attention; the number of tokens is the model's, and `layer` the number of the block.

    Raises:
        BadInputError: no such layers, an option the attention does not have, or a model without such blocks.

    Examples:
        >>> from robustbench_kpca import load_model, place
        >>> model = place(load_model("vit_digits"), "symmetric", layers="last")
        >>> type(model.blocks[-1].attn).__name__
        'SymmetricAttention'
    """
    inner: Any = getattr(model, "encoder", model)
    blocks: Any = getattr(inner, "blocks", None)
    if blocks is None or not all(hasattr(getattr(block, "attn", None), "proj") for block in blocks):
        raise BadInputError(f"a {type(model).__name__}", expected="a model with blocks[i].attn, such as timm's ViT")
    kind = ATTENTIONS.get(attention) if isinstance(attention, str) else attention
    parameters = inspect.signature(kind).parameters
    if "causal" in parameters and getattr(model, "causal", False):
        options = options | {"causal": True}
    elif "tokens" in parameters:
        options = options | {"tokens": _tokens(inner)}
    indices = _block_indices(layers, len(blocks))
    for index in indices:
        numbered = {"layer": index} if "layer" in parameters else {}
        blocks[index].attn = _with_weights_of(blocks[index].attn, kind, numbered | options)
    chain([blocks[index].attn for index in sorted(set(indices))])
    return model


def fit(
    state: Mapping[str, Tensor], model: nn.Module, attention: str
) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """Make the weights of a model with another attention those of `model`, as `place` would have kept them.

    Args:
        state: the weights by name. Without any tensor of an attention, it stays as it is.
        model: where `attention` is in some layers; its own values stand where none fits.
        attention: its name, or its address.

    Returns:
        The weights; names of the layers whose weights were others; and names of tensors that begin anew.
    """
    kind, expected, state = ATTENTIONS.get(attention), model.state_dict(), dict(state)
    changed, begun = list[str](), list[str]()
    for name, module in model.named_modules():
        old, new = (_inside(name, weights) for weights in (state, expected))
        if type(module) is not kind or not old or _shapes(old) == _shapes(new):
            continue
        fitting = _fitting(old, new)
        state = {key: value for key, value in state.items() if not key.startswith(f"{name}.")}
        state |= {f"{name}.{key}": fitting.get(key, value) for key, value in new.items()}
        changed.append(name)
        begun += [f"{name}.{key}" for key in new if key not in fitting]
    return state, changed, begun


def _inside(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}


def _shapes(state: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: value.shape for name, value in state.items()}


def _tokens(model: Any) -> int:
    if hasattr(model, "tokens"):
        return int(model.tokens)
    return int(model.patch_embed.num_patches + getattr(model, "num_prefix_tokens", 0))


def _block_indices(layers: Any, depth: int) -> list[int]:
    quarter = list(range(max(1, depth // 4)))
    named = {"first": [0], "quarter": quarter, "last": [depth - 1], "all": list(range(depth))}
    if isinstance(layers, str) and layers in named:
        return named[layers]
    indices = list(layers) if isinstance(layers, (list, tuple)) else [layers]
    if not indices or not all(type(index) is int and 0 <= index < depth for index in indices):
        raise BadInputError(
            f"layers = {layers!r}", expected=f"'first', 'quarter', 'last', 'all' or block indices from 0 to {depth - 1}"
        )
    return indices


def _with_weights_of(old: Any, kind: Any, options: dict[str, Any]) -> nn.Module:
    """Build another attention of the same shape, mode and precision, with the parameters of the old one that fit.

    So variants of a model have the same initial weights. Where the old one has Q, K and V and the new one K and V, the
    rows of K and V are kept.
    """
    projection, state = getattr(old, "projection", "qkv"), _with_one_projection(old.state_dict())
    if projection != "qkv":
        options = options | {"projection": projection}
    if old.proj.bias is None:
        options = options | {"proj_bias": False}
    dropouts = ["proj_drop"]
    if issubclass(kind, MultiHeadAttention):  # the others have no scores
        dropouts.append("attn_drop")
        options = options | ({"rotary": True} if getattr(old, "rotary", False) else {})
    options = {name: rate for name in dropouts if (rate := _dropout(old, name))} | options
    try:
        new: nn.Module = kind(old.proj.in_features, old.num_heads, qkv_bias=f"{projection}.bias" in state, **options)
    except TypeError as error:
        raise BadInputError(f"attention {kind.__name__} cannot be built with {options} ({reason_of(error)})") from None
    new.load_state_dict(_fitting(state, new.state_dict()), strict=False)  # other parameters keep their initial values
    return new.to(old.proj.weight).train(old.training)


def _fitting(state: dict[str, Any], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters of another attention that fit the `expected` ones; K and V are cut out of Q, K and V."""
    state = _with_one_projection(state)
    for name, value in state.items():
        if name in expected and expected[name].ndim and len(expected[name]) * 3 == len(value) * 2:
            state[name] = value[len(value) // 3 :]
    return {name: value for name, value in state.items() if name in expected and expected[name].shape == value.shape}


def _with_one_projection(state: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of an attention with `q` and `kv`, as FAN has it, as those of one with `qkv`."""
    if "kv.weight" not in state or "q.weight" not in state:
        return state
    joined = {f"qkv.{name}": torch.cat([state[f"q.{name}"], state[f"kv.{name}"]]) for name in ("weight", "bias")}
    return joined | {name: value for name, value in state.items() if not name.startswith(("q.", "kv."))}


def _dropout(attention: Any, name: str) -> float:
    rate = getattr(attention, name, 0.0)
    return float(getattr(rate, "p", rate))
