"""Rotary positions: keys and queries are turned by their place, so that scores depend on distances only.

Su et al. (2021), "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv:2104.09864, equation 34.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError

Heads = Float[Tensor, "batch heads tokens head_dim"]
BASE = 10_000.0


def require_pairs(width: int) -> None:
    """Refuse a head width that cannot be divided into pairs."""
    if width % 2:
        raise BadInputError(f"rotary positions for heads of width {width}", expected="an even width")


def rotated(x: Heads) -> Heads:
    """Return R_t x_t for token t of every head; <R_s q, R_t k> depends on q, k and s - t only.

    With theta_i = 10000^(-2 i / D), for i = 0 ... D/2 - 1,

        (x_i, x_{i + D/2}) <- (x_i cos(t theta_i) - x_{i + D/2} sin(t theta_i),
                               x_i sin(t theta_i) + x_{i + D/2} cos(t theta_i))

    Angles are computed in at least single precision.
    """
    tokens, half = x.shape[-2], x.shape[-1] // 2
    wide = torch.promote_types(x.dtype, torch.float32)
    theta = BASE ** (-torch.arange(half, device=x.device, dtype=wide) / half)
    angles = torch.arange(tokens, device=x.device, dtype=wide).unsqueeze(-1) * theta
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)
