"""The vision transformers of the benchmark: one family per attention variant, at every size, on timm's ViT."""

from dataclasses import asdict, dataclass, field
from typing import Any

from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.models.normalisation import normalise_inside
from robustbench_kpca.registry import unknown_name
from robustbench_kpca.strict import did_you_mean


@dataclass(frozen=True)
class Size:
    """Shape of a plain ViT."""

    img_size: int
    patch_size: int
    embed_dim: int
    depth: int
    num_heads: int
    num_classes: int
    mlp_ratio: float = 4.0


SIZES = {
    "digits": Size(32, 8, embed_dim=48, depth=4, num_heads=3, num_classes=10, mlp_ratio=3.0),
    "tiny_patch16_224": Size(224, 16, embed_dim=192, depth=12, num_heads=3, num_classes=1000),
    "small_patch16_224": Size(224, 16, embed_dim=384, depth=12, num_heads=6, num_classes=1000),
    "base_patch16_224": Size(224, 16, embed_dim=768, depth=12, num_heads=12, num_classes=1000),
}


@dataclass(frozen=True)
class Variant:
    """An attention for every block, and a `special` one, with its options, for chosen `layers`."""

    attention: str
    special: str | None = None
    layers: str = "first"
    options: dict[str, Any] = field(default_factory=dict)


def _rpc(iterations: int, lam: float) -> dict[str, Any]:
    return {"iterations": iterations, "lam": lam, "threshold": "lam*mu", "mu_width": "embed"}


FAMILIES = {
    "vit": Variant("softmax"),
    "symvit": Variant("symmetric"),
    "rpc_symvit": Variant("symmetric", "rpc", "first", _rpc(4, 4.0)),
    "rpc_symvit_all": Variant("symmetric", "rpc", "all", _rpc(2, 3.0)),
    "identity_symvit": Variant("symmetric", "identity", "first"),
    "scaled_vit": Variant("softmax", "scaled", "all", {"form": "alpha"}),
}
ARCHITECTURES = {f"{family}_{size}": (family, size) for family in FAMILIES for size in SIZES}


class ViT(VisionTransformer):  # type: ignore[misc]  # timm is untyped
    """timm's ViT that remembers how to build it again: `create_model(**config)`."""

    config: dict[str, Any]


def create_model(name: str, **options: Any) -> ViT:
    """Build an untrained model: images in [0, 1], (batch, 3, height, width), to logits.

    Args:
        name: one of `rbk list models`, such as `rpc_symvit_tiny_patch16_224`.
        **options: of the architecture (`num_classes`, `img_size`, `depth`, ...); `layers` of the special attention
            (`"first"`, `"all"`, or block indices); and its own: `iterations`, `lam`, `threshold` and `mu_width` of RPC,
            `form` of scaled attention.

    Raises:
        UnknownNameError: no such model.
        BadInputError: an option the model does not have, or a value it cannot take.

    """
    if name not in ARCHITECTURES:
        raise unknown_name("model", name, ARCHITECTURES, "(see: rbk list models)")
    family, size = ARCHITECTURES[name]
    variant = FAMILIES[family]
    shape, special = asdict(SIZES[size]), dict(variant.options)
    placed = {"layers": variant.layers} if variant.special else {}
    known = [*shape, *special, *placed]
    for option in options:
        if option not in known:
            raise BadInputError(f"model '{name}' has no option '{option}'", fix=did_you_mean(option, known))
    shape, special, placed = (
        {key: options.get(key, value) for key, value in own.items()} for own in (shape, special, placed)
    )
    _require_counts(shape | special)
    try:
        model = ViT(**shape, attn_layer=ATTENTIONS.get(variant.attention))
    except (TypeError, ValueError, AssertionError, RuntimeError, ZeroDivisionError) as error:
        raise BadInputError(
            f"model '{name}' cannot be built with {options} ({error})", fix="change that option"
        ) from None
    if variant.special:
        derived = {"tokens": model.pos_embed.shape[1]}  # some attentions have parameters of that shape
        for index in _block_indices(placed["layers"], len(model.blocks)):
            model.blocks[index].attn = _with_weights_of(model.blocks[index].attn, variant.special, special | derived)
    model.config = {"name": name, **shape, **special, **placed}
    normalise_inside(model, IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD).eval()
    return model


def _require_counts(options: dict[str, Any]) -> None:
    for key, value in options.items():
        whole = key in _COUNTS
        right = isinstance(value, int) if whole else isinstance(value, (int, float, str))
        if isinstance(value, bool) or not right or (whole and value < 1):
            raise BadInputError(f"{key} = {value!r}", expected="a whole number, at least 1" if whole else "a number")


_COUNTS = ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "num_classes", "iterations")


def _block_indices(layers: Any, depth: int) -> list[int]:
    if layers == "first":
        return [0]
    if layers == "all":
        return list(range(depth))
    indices = [layers] if isinstance(layers, int) else list(layers) if isinstance(layers, (list, tuple)) else []
    if not indices or not all(isinstance(index, int) and 0 <= index < depth for index in indices):
        raise BadInputError(f"layers = {layers!r}", expected=f"'first', 'all' or block indices from 0 to {depth - 1}")
    return indices


def _with_weights_of(old: Any, attention: str, options: dict[str, Any]) -> nn.Module:
    """Build another attention of the same shape; the parameters stay, so variants share their initialisation."""
    dim, heads = old.proj.in_features, old.num_heads
    try:
        new: nn.Module = ATTENTIONS.get(attention)(dim, heads, qkv_bias=old.qkv.bias is not None, **options)
    except TypeError as error:
        raise BadInputError(f"attention '{attention}' cannot be built with {options} ({error})") from None
    new.load_state_dict(old.state_dict(), strict=False)  # a new parameter keeps its start
    return new
