"""Every architecture by name: a backbone at a size, an attention in its blocks, and a special one in chosen blocks."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import timm.data
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import nn

from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.models import fan, vit
from robustbench_kpca.models.normalisation import normalise_inside
from robustbench_kpca.registry import unknown_name
from robustbench_kpca.strict import did_you_mean


@dataclass(frozen=True)
class Backbone:
    """A network at its sizes; `build` takes the name of an attention and a shape."""

    sizes: Mapping[str, Any]
    build: Callable[[str, dict[str, Any]], Any]
    crop: float
    """Share of an image file that its authors' evaluation keeps."""


VIT = Backbone(vit.SIZES, vit.build_vit, crop=0.875)
FAN = Backbone(fan.SIZES, fan.build_fan, crop=1.0)


@dataclass(frozen=True)
class Family:
    """An attention for every block, and a `special` one, with its options, for chosen `layers`."""

    backbone: Backbone
    attention: str
    special: str | None = None
    layers: str = "first"
    options: dict[str, Any] = field(default_factory=dict)


def _rpc(iterations: int, lam: float) -> dict[str, Any]:
    return {"iterations": iterations, "lam": lam, "threshold": "lam*mu", "mu_width": "embed", "dual_sign": -1}


_PRIMAL = {"rank": 20, "rank_multi": 10}

FAMILIES = {
    "vit": Family(VIT, "softmax"),
    "symvit": Family(VIT, "symmetric"),
    "rpc_symvit": Family(VIT, "symmetric", "rpc", "first", _rpc(4, 4.0)),
    "rpc_symvit_all": Family(VIT, "symmetric", "rpc", "all", _rpc(2, 3.0)),
    "rpc_vit": Family(VIT, "softmax", "rpc_asymmetric", "first", _rpc(4, 4.0)),  # appendix E.10, first form
    "rpc_vit_sym": Family(VIT, "softmax", "rpc", "first", _rpc(4, 4.0)),  # appendix E.10, second form
    "identity_symvit": Family(VIT, "symmetric", "identity", "first"),
    "scaled_vit": Family(VIT, "softmax", "scaled", "all", {"form": "alpha"}),
    "primal_vit": Family(VIT, "softmax", "primal", "last", _PRIMAL),
    "kep_svgp_vit": Family(VIT, "softmax", "kep_svgp", "last", {"rank": 10, "rank_multi": 10, "form": "concatenate"}),
    "fan": Family(FAN, "softmax"),
    "symfan": Family(FAN, "symmetric"),
    "rpc_fan": Family(FAN, "symmetric", "rpc", "first", _rpc(4, 4.0)),
    "identity_fan": Family(FAN, "symmetric", "identity", "first"),
}
ARCHITECTURES = {f"{family}_{size}": (family, size) for family in FAMILIES for size in FAMILIES[family].backbone.sizes}


def create_model(name: str, **options: Any) -> Any:
    """Build an untrained model: images in [0, 1], (batch, 3, height, width), to logits.

    Args:
        name: one of `rbk list models`, such as `rpc_symvit_tiny_patch16_224`.
        **options: of the architecture (`num_classes`, `img_size`, `depth`, `drop_path_rate`, ...); `layers` of the
            special attention (`"first"`, `"last"`, `"all"`, or block indices); and its own: `iterations`, `lam`,
            `threshold`, `mu_width` and `dual_sign` of RPC, `form` of scaled attention and KEP-SVGP, `rank` and
            `rank_multi` of Primal attention and KEP-SVGP.

    Raises:
        UnknownNameError: no such model.
        BadInputError: an option the model does not have, or a value it cannot take.

    """
    shape = shape_of(name, options)
    family = FAMILIES[ARCHITECTURES[name][0]]
    special = dict(family.options)
    placed = {"layers": family.layers} if family.special else {}
    known = [*shape, *special, *placed]
    for option in options:
        if option not in known:
            raise BadInputError(f"model '{name}' has no option '{option}'", fix=did_you_mean(option, known))
    special, placed = ({key: options.get(key, value) for key, value in own.items()} for own in (special, placed))
    _require_counts(shape | special)
    _require_share(shape)
    try:
        model = family.backbone.build(family.attention, shape)
    except (TypeError, ValueError, AssertionError, RuntimeError, ZeroDivisionError) as error:
        raise BadInputError(
            f"model '{name}' cannot be built with {options} ({error})", fix="change that option"
        ) from None
    if family.special:
        place(model, family.special, placed["layers"], **special)
    model.config = {"name": name, **shape, **special, **placed}
    model.pretrained_cfg = _view(shape, family.backbone.crop)
    normalise_inside(model, IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD).eval()
    return model


def place(model: nn.Module, attention: str, layers: Any = "all", **options: Any) -> nn.Module:
    """Put an attention into chosen layers of a ViT, timm's or the project's, or of a FAN; return the model.

    Parameters that fit are kept (of Q, K and V, the K and V rows where the new attention has no Q).

    Args:
        model: with `blocks[i].attn`.
        attention: a name of `robustbench_kpca.attention`.
        layers: `"first"`, `"last"`, `"all"`, or block indices.
        **options: of the attention; the number of tokens is the model's.

    Raises:
        BadInputError: no such layers, an option the attention does not have, or a model without such blocks.

    """
    blocks: Any = getattr(model, "blocks", None)
    if blocks is None or not all(hasattr(getattr(block, "attn", None), "proj") for block in blocks):
        raise BadInputError(f"a {type(model).__name__}", expected="a model with blocks[i].attn, such as timm's ViT")
    for index in _block_indices(layers, len(blocks)):
        blocks[index].attn = _with_weights_of(blocks[index].attn, attention, options | {"tokens": _tokens(model)})
    return model


def _tokens(model: Any) -> int:
    if hasattr(model, "tokens"):
        return int(model.tokens)
    return int(model.patch_embed.num_patches + getattr(model, "num_prefix_tokens", 0))


def is_stochastic(name: str) -> bool:
    """Tell whether an architecture draws noise at test time: attacks on it need expectation over transformation."""
    family = FAMILIES[ARCHITECTURES[name][0]]
    return any(
        getattr(ATTENTIONS.get(used), "stochastic", False) for used in (family.attention, family.special) if used
    )


def shape_of(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the backbone's shape that `create_model` would build."""
    if name not in ARCHITECTURES:
        raise unknown_name("model", name, ARCHITECTURES, "(see: rbk list models)")
    family, size = ARCHITECTURES[name]
    shape = asdict(FAMILIES[family].backbone.sizes[size])
    return {key: options.get(key, value) for key, value in shape.items()}


def _view(shape: dict[str, Any], crop: float) -> dict[str, Any]:
    """Say in timm's terms how the model wants to see images: in [0, 1], for it normalises them itself."""
    side = shape["img_size"]
    seen = {"input_size": (3, side, side), "crop_pct": crop, "interpolation": "bicubic"}
    return seen | {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), "num_classes": shape["num_classes"]}


def _require_counts(options: dict[str, Any]) -> None:
    for key, value in options.items():
        whole = key in _COUNTS
        right = isinstance(value, int) if whole else isinstance(value, (int, float, str))
        least = 0 if key == "iterations" else 1
        if isinstance(value, bool) or not right or (whole and value < least):
            raise BadInputError(
                f"{key} = {value!r}", expected=f"a whole number, at least {least}" if whole else "a number"
            )


_COUNTS = (
    "img_size", "patch_size", "embed_dim", "depth", "num_heads", "num_classes", "cls_layers", "iterations", "rank",
    "rank_multi",
)  # fmt: skip


def _require_share(options: dict[str, Any]) -> None:
    if not 0 <= options["drop_path_rate"] < 1:
        raise BadInputError(f"drop_path_rate = {options['drop_path_rate']}", expected="at least 0 and less than 1")


def _block_indices(layers: Any, depth: int) -> list[int]:
    named = {"first": [0], "last": [depth - 1], "all": list(range(depth))}
    if isinstance(layers, str) and layers in named:
        return named[layers]
    indices = [layers] if isinstance(layers, int) else list(layers) if isinstance(layers, (list, tuple)) else []
    if not indices or not all(isinstance(index, int) and 0 <= index < depth for index in indices):
        raise BadInputError(
            f"layers = {layers!r}", expected=f"'first', 'last', 'all' or block indices from 0 to {depth - 1}"
        )
    return indices


def _with_weights_of(old: Any, attention: str, options: dict[str, Any]) -> nn.Module:
    """Build another attention of the same shape; parameters that fit stay, so variants share their initialisation.

    Where Q, K and V become K and V, those two thirds stay.
    """
    kind = ATTENTIONS.get(attention)
    projection = getattr(old, "projection", "qkv")
    biased = getattr(old, projection).bias is not None
    taken = inspect.signature(kind).parameters
    if projection != "qkv":
        options = options | {"projection": projection}
    if "tokens" not in taken:
        options = {key: value for key, value in options.items() if key != "tokens"}
    try:
        new: nn.Module = kind(old.proj.in_features, old.num_heads, qkv_bias=biased, **options)
    except TypeError as error:
        raise BadInputError(f"attention '{attention}' cannot be built with {options} ({error})") from None
    own, state = new.state_dict(), old.state_dict()
    for name, value in state.items():
        if name in own and own[name].ndim and len(own[name]) * 3 == len(value) * 2:
            state[name] = value[len(value) // 3 :]
    fitting = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
    new.load_state_dict(fitting, strict=False)  # what is new keeps its start
    return new


def register_with_timm() -> None:
    """Let `timm.create_model` build every architecture whose name is not timm's own already.

    `pretrained=True` gives the weights that come with the package, where there are any.
    """
    for name in ARCHITECTURES:
        if not timm.is_model(name):
            timm.models.register_model(_entry_point(name))


def _entry_point(name: str) -> Callable[..., Any]:
    def build(pretrained: bool = False, **options: Any) -> Any:
        for timms in ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"):  # where timm would look for weights
            options.pop(timms, None)
        if not pretrained:
            return create_model(name, **options)
        from robustbench_kpca.models.loading import load_model

        return load_model(name, **options)

    build.__name__ = name
    build.__module__ = __name__
    return build
