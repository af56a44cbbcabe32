"""The frame of attention with several heads: projections, norms, masks and dropout. A variant writes `attend`."""

import inspect
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.shared.rotary import require_pairs, rotated

Heads = Float[Tensor, "batch heads tokens head_dim"]
Tokens = Float[Tensor, "batch tokens dim"]
Keys = Float[Tensor, "*batch tokens head_dim"]


def split_heads(projected: Tokens, parts: int, heads: int) -> tuple[Heads, ...]:
    """Cut (batch, tokens, parts * C) into `parts` tensors of (batch, heads, tokens, C / heads)."""
    batch, tokens, _ = projected.shape
    return projected.view(batch, tokens, parts, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)


def merge_heads(heads: Heads) -> Tokens:
    """Put the heads side by side again: (batch, tokens, C)."""
    return heads.transpose(1, 2).flatten(2)


def require_heads(dim: int, num_heads: int) -> None:
    """Refuse a width that is not a multiple of the number of heads."""
    if dim % num_heads:
        raise BadInputError(f"width {dim} with {num_heads} heads", expected="a multiple of the number of heads")


KeyMask = Bool[Tensor, "batch 1 1 tokens"]
"""True for the keys that are seen; the others are padding."""


def require_key_mask(attention: nn.Module, mask: Tensor | None, *, causal: bool) -> None:
    """Refuse a mask other than a `KeyMask`, and one together with the causal mask, for which there is `is_causal`."""
    if mask is not None and (causal or mask.dtype != torch.bool or mask.ndim != 4 or mask.shape[1:3] != (1, 1)):
        raise BadInputError(
            f"a mask for {type(attention).__name__}", expected="no mask, is_causal=True, or bool (batch, 1, 1, tokens)"
        )


def standardised(x: Keys) -> Keys:
    """Give every token mean 0 and (unbiased) deviation 1 over its entries, as the study and the released code do."""
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True).clamp_min(1e-8)


class Standardised(nn.Module):
    """`standardised` in at least single precision, returned in that of the input."""

    def forward(self, x: Heads) -> Heads:
        """Keep the shape."""
        return standardised(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)


def refuse_options(layer: nn.Module, **options: Any) -> None:
    """Refuse options of timm that the layer does not have."""
    if any(options.values()):
        names = " and ".join(name for name, value in options.items() if value)
        raise BadInputError(f"{names} with {type(layer).__name__}", expected=f"none of {', '.join(options)}")


def _norm(kind: bool | str, layer: Any, width: int, place: dict[str, Any]) -> nn.Module:
    if not isinstance(kind, bool) and kind != "standardised":
        raise BadInputError(f"qk_norm = {kind!r}", expected="true, false or 'standardised'")
    norm: nn.Module = layer(width, **place) if kind is True else Standardised() if kind else nn.Identity()
    return norm


class MultiHeadAttention(nn.Module, ABC):
    """out = proj(attend(Q, K, V)), with (Q, K, V) = qkv(x), one linear layer of width 3C.

    A variant defines `attend`. Where the class says `symmetric`, keys are also the queries: the linear layer has width
    2C, and `attend` gets K twice. An `attend` without `causal` is called once for every token and those before it where
    later tokens are hidden: right, but as many times slower. An `attend` without `mask` sees padding as words. `off` is
    the OPTION=VALUE with which what the class is named for is gone, and nothing else changes; empty: there is none.

    Args:
        dim: C, the width of a token; `num_heads` must divide it.
        num_heads: number of heads H; each has width D = C / H.
        qkv_bias: whether the linear layer that makes Q, K and V has a bias.
        qk_norm: normalise every query and key: True by a `norm_layer` of its own, `"standardised"` to mean 0 and
            deviation 1 without parameters. Refused where the class says `symmetric`.
        scale_norm: refused; timm passes it to every attention.
        proj_bias: whether the last linear layer has a bias.
        attn_drop: rate of dropout of attention weights in training, from 0 to 1.
        proj_drop: rate of dropout of the result in training, from 0 to 1.
        norm_layer: makes the normalisation of `qk_norm=True` from a width.
        device: device of the parameters.
        dtype: type of the parameters.
        projection: name of the linear layer: `qkv` as in timm and the authors' checkpoints, `kv` as in those of FAN.
        rotary: turn queries and keys by their place in the sequence; D must be even.

    Raises:
        BadInputError: an option is refused, or sizes do not fit.

    Examples:
        >>> import torch
        >>> from robustbench_kpca import MultiHeadAttention
        >>> class Average(MultiHeadAttention):
        ...     def attend(self, q, k, v):
        ...         return v.mean(dim=2, keepdim=True).expand_as(v)
        >>> Average(16, num_heads=4)(torch.zeros(1, 5, 16)).shape
        torch.Size([1, 5, 16])
    """

    symmetric: ClassVar[bool] = False
    off: ClassVar[str] = ""
    takes_causal: ClassVar[bool] = True
    takes_key_mask: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        """Note what the variant's `attend` takes."""
        super().__init_subclass__(**options)
        parameters = inspect.signature(cls.attend).parameters
        cls.takes_causal, cls.takes_key_mask = "causal" in parameters, "mask" in parameters

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        qk_norm: bool | str = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Any = None,
        device: Any = None,
        dtype: Any = None,
        projection: str = "qkv",
        rotary: bool = False,
    ) -> None:
        super().__init__()
        require_heads(dim, num_heads)
        if rotary:
            require_pairs(dim // num_heads)
        refuse_options(self, **({"qk_norm": qk_norm} if self.symmetric else {}), scale_norm=scale_norm)
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.num_heads, self.projection, self.rotary = num_heads, projection, rotary
        self.add_module(projection, nn.Linear(dim, (2 if self.symmetric else 3) * dim, bias=qkv_bias, **place))
        self.q_norm, self.k_norm = (_norm(qk_norm, norm_layer, dim // num_heads, place) for _ in range(2))
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim, bias=proj_bias, **place)
        self.proj_drop = nn.Dropout(proj_drop)

    @property
    def dropout(self) -> float:
        """The rate of dropout of attention weights; 0 outside training."""
        return self.attn_drop.p if self.training else 0.0

    @abstractmethod
    def attend(self, q: Heads, k: Heads, v: Heads, *, causal: bool = False, mask: KeyMask | None = None) -> Heads:
        """Mix the values of one layer, head by head.

        Args:
            q: queries, (batch, heads, tokens, head width).
            k: keys; where the class says `symmetric`, these are the queries.
            v: values.
            causal: whether a token attends to itself and earlier ones only.
            mask: the keys that are no padding; None: all.
        """

    def queries_keys_values(self, x: Tokens) -> tuple[Heads, Heads, Heads]:
        """Project tokens to (Q, K, V), normalised and turned as the layer's options say."""
        *q, k, v = split_heads(getattr(self, self.projection)(x), 2 if self.symmetric else 3, self.num_heads)
        k = self.turned(self.k_norm(k))
        return self.turned(self.q_norm(q[0])) if q else k, k, v

    def turned(self, x: Heads) -> Heads:
        """Return queries or keys as the variant sees them: turned by their place, if the layer does so."""
        return rotated(x) if self.rotary else x

    def forward(self, x: Tokens, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tokens:
        """Map tokens to tokens; later tokens (`is_causal`) or padding (a `KeyMask`) are hidden, other masks refused."""
        if attn_mask is not None and not self.takes_key_mask:
            raise BadInputError(f"a mask for {type(self).__name__}", expected="no mask, or is_causal=True")
        require_key_mask(self, attn_mask, causal=is_causal)
        q, k, v = self.queries_keys_values(x)
        if is_causal and not self.takes_causal:
            ends = range(1, x.shape[1] + 1)
            mixed = torch.cat([self.attend(q[:, :, :n], k[:, :, :n], v[:, :, :n])[:, :, -1:] for n in ends], 2)
        else:
            how: dict[str, Any] = {"causal": is_causal} if self.takes_causal else {}
            mixed = self.attend(q, k, v, **(how | {"mask": attn_mask} if self.takes_key_mask else how))
        out: Tensor = self.proj_drop(self.proj(merge_heads(mixed)))
        return out
