"""The pursuit of `attention/rpc.py` on a GPU: shrinkage, dual step and attention of an iteration in one Triton kernel.

M is computed where it is needed from K, L and U, and is never stored. Kept for the backward pass are K, V, the L of
every iteration and one number a token, a third of what the plain form keeps an iteration; U is computed again from
them. In the symmetric form the scores are a symmetric matrix, so the backward kernel computes a block of them once,
for its rows as queries and as keys: five products a block, where the usual two kernels have seven.

On trial: an H100 and Triton's interpreter ran it against the plain form; its speed is unmeasured (docs/decisions/0026).

Online softmax: Milakov & Gimelshein (2018), arXiv:1805.02867; recomputed scores: Dao et al. (2022), arXiv:2205.14135.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether Triton runs kernels on the CPU, as it does where TRITON_INTERPRET=1 is set before it is imported."""

ON_GPU = (torch.float32, torch.bfloat16, torch.float16)


@torch.compiler.disable
def pursue(
    k: Tensor, v: Tensor, query: Tensor | None, bound: Tensor, iterations: int, dual_sign: int, *, causal: bool
) -> Tensor:
    """Return L after n >= 1 iterations; arguments as in `Pursuit`, `bound` is t: (batch, heads, 1 or tokens, 1).

    Products are exact in single precision, or TF32 where torch's matrix products are.

    Raises:
        BadInputError: the tensors are not on a CUDA device, or in double precision.
    """
    if not INTERPRETED and (k.device.type != "cuda" or k.dtype not in ON_GPU):
        met = str(k.device) if k.device.type != "cuda" else str(k.dtype).removeprefix("torch.")
        raise BadInputError(
            f"fused = true on {met}", expected="a CUDA device, and single or half precision", fix="leave fused out"
        )
    with torch.cuda.device_of(k):
        mixed: Tensor = _Pursue.apply(k, v, query, bound, iterations, dual_sign, causal)
    return mixed


class _Pursue(torch.autograd.Function):
    """All iterations of one layer."""

    @staticmethod
    def forward(
        ctx: Any,
        k: Tensor,
        v: Tensor,
        query: Tensor | None,
        bound: Tensor,
        iterations: int,
        dual_sign: int,
        causal: bool,
    ) -> Tensor:
        k, v = k.contiguous(), v.contiguous()
        query = None if query is None else query.contiguous()
        lows: list[Tensor] = []
        sums: list[Tensor] = []
        dual = None
        for _ in range(iterations):
            low, after = torch.empty_like(k), torch.empty_like(k)
            log_sum = torch.empty(k.shape[:-1], dtype=_wide(k), device=k.device)
            last = lows[-1] if lows else None
            _forward[_grid(k)](
                *_operands(k, last, dual, v, query),
                bound,
                low,
                after,
                log_sum,
                *_sizes(k, bound),
                **_constants(k, last is None, query is not None, causal, dual_sign),
            )
            lows.append(low)
            sums.append(log_sum)
            dual = after
        ctx.save_for_backward(k, v, query, bound, *lows, *sums)
        ctx.settings = iterations, dual_sign, causal
        return lows[-1].clone()  # what is returned is the caller's to change

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # torch's `once_differentiable` leaves out a part of what `grad` is asked for
            raise BadInputError("second derivatives through fused = true", fix="leave fused out")
        iterations, dual_sign, causal = ctx.settings
        k, v, query, bound, *kept = ctx.saved_tensors
        lows, sums = kept[:iterations], kept[iterations:]
        duals = _duals(k, bound, lows)
        of_k, of_v, of_query = (torch.zeros_like(k, dtype=_wide(k)) for _ in range(3))
        of_bound = torch.zeros(k.shape[:-1], dtype=_wide(k), device=k.device)
        of_low, of_dual = gradients[0].to(_wide(k)).contiguous(), None
        for number in reversed(range(iterations)):
            of_out = of_low if of_dual is None else of_low - of_dual  # U = C - L
            delta = (of_out * lows[number]).sum(-1)
            last = lows[number - 1] if number else None
            earlier_low, earlier_dual = torch.empty_like(of_out), torch.empty_like(of_out)
            _backward[_grid(k)](
                *_operands(k, last, duals[number], v, query), bound, sums[number], of_out, delta,
                of_out if of_dual is None else of_dual, of_k, of_v, of_query, of_bound, earlier_low, earlier_dual,
                *_sizes(k, bound), LAST=of_dual is None,
                **_constants(k, last is None, query is not None, causal, dual_sign),
            )  # fmt: skip
            of_low, of_dual = earlier_low, earlier_dual
        return (
            of_k.to(k.dtype),
            of_v.to(v.dtype),
            None if query is None else of_query.to(query.dtype),
            of_bound.unsqueeze(-1).sum_to_size(bound.shape).to(bound.dtype),
            None,
            None,
            None,
        )


def _duals(k: Tensor, bound: Tensor, lows: list[Tensor]) -> list[Tensor | None]:
    """Compute U before each iteration again: U <- L + clip(K - L + U; t) - L', as the forward kernel did."""
    duals: list[Tensor | None] = [None]
    wide = k.to(_wide(k))
    before: Tensor | float = 0.0
    dual: Tensor | float = 0.0
    for low in lows[:-1]:
        duals.append(((before + torch.clamp(wide - before + dual, -bound, bound)) - low.to(wide.dtype)).to(k.dtype))
        before, dual = low.to(wide.dtype), duals[-1].to(wide.dtype)  # type: ignore[union-attr]
    return duals


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _block(k: Tensor) -> int:
    """Tokens of a block, so that its operands fit into registers and shared memory."""
    width: int = triton.next_power_of_2(k.shape[-1])
    return max(16, min(64, 4096 // (width * k.element_size() // 2)))


def _grid(k: Tensor) -> tuple[int]:
    """Count programs; along one axis, since a device allows only 65535 along another."""
    return (triton.cdiv(k.shape[-2], _block(k)) * k.shape[0] * k.shape[1],)


def _operands(
    k: Tensor, low: Tensor | None, dual: Tensor | None, v: Tensor, query: Tensor | None
) -> tuple[Tensor, ...]:
    """Tensors that a kernel does not read may be any tensor."""
    return k, k if low is None else low, k if dual is None else dual, v, k if query is None else query


def _sizes(k: Tensor, bound: Tensor) -> tuple[int, int, int, float]:
    """Tokens N, width D, bounds a head (1 or N), and the scale of the scores."""
    return k.shape[-2], k.shape[-1], bound.shape[-2], k.shape[-1] ** -0.5


def _constants(k: Tensor, first: bool, asymmetric: bool, causal: bool, dual_sign: int) -> dict[str, Any]:
    return {
        "FIRST": first,
        "ASYMMETRIC": asymmetric,
        "CAUSAL": causal,
        "SIGN": dual_sign,
        "BLOCK": _block(k),
        "WIDTH": max(16, triton.next_power_of_2(k.shape[-1])),
        "WIDE": tl.float64 if k.element_size() == 8 else tl.float32,
        "num_warps": 8,
        "num_stages": 1,  # more would need more shared memory and registers than some devices have
        "enable_fp_fusion": False,  # the default of Triton depends on its version and on the environment
        "PRECISION": "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee",
    }


# --- kernels: one program for a block of tokens of one head. Tensors are contiguous: (batch * heads, N, D) -----------
# `no_type_check`: Triton reads their source, so nothing may be wrapped around them (RBK_TYPECHECK=1).


@triton.jit
@no_type_check
def _place(n, BLOCK: tl.constexpr):  # noqa: N803
    """Return which head, of all samples, and which block of its tokens a program has."""
    blocks = tl.cdiv(n, BLOCK)
    return (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks


@triton.jit
@no_type_check
def _rows(x, head, tokens, n, d, WIDTH: tl.constexpr):  # noqa: N803
    """Load tokens of a head; what is outside is 0."""
    columns = tl.arange(0, WIDTH)
    inside = (tokens[:, None] < n) & (columns[None, :] < d)
    return tl.load(x + head * n * d + tokens[:, None] * d + columns[None, :], mask=inside, other=0.0)


@triton.jit
@no_type_check
def _store(x, value, head, tokens, n, d, WIDTH: tl.constexpr):  # noqa: N803
    columns = tl.arange(0, WIDTH)
    inside = (tokens[:, None] < n) & (columns[None, :] < d)
    tl.store(x + head * n * d + tokens[:, None] * d + columns[None, :], value.to(x.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _split(
    k, low, dual, bound, head, tokens, n, d, bounds,
    FIRST: tl.constexpr, SIGN: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Return c = clip(K - L + U; t), t, C = L + c and M. A NaN stays a NaN."""
    t = tl.load(bound + head * bounds + tl.where(bounds == 1, 0, tokens), mask=tokens < n, other=0.0).to(WIDE)[:, None]
    argument = _rows(k, head, tokens, n, d, WIDTH).to(WIDE)
    if FIRST:
        clipped = tl.where(argument > t, t, tl.where(argument < -t, -t, argument))
        carried = clipped
        inner = clipped
    else:
        before = _rows(low, head, tokens, n, d, WIDTH).to(WIDE)
        u = _rows(dual, head, tokens, n, d, WIDTH).to(WIDE)
        argument = argument - before + u
        clipped = tl.where(argument > t, t, tl.where(argument < -t, -t, argument))
        carried = before + clipped
        inner = carried if SIGN > 0 else carried - 2 * u
    return clipped, t, carried, inner.to(k.dtype.element_ty)


@triton.jit
@no_type_check
def _inner(
    k, low, dual, bound, head, tokens, n, d, bounds,
    FIRST: tl.constexpr, SIGN: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Return M alone."""
    split = _split(k, low, dual, bound, head, tokens, n, d, bounds, FIRST, SIGN, WIDTH, WIDE)
    return split[3]


@triton.jit
@no_type_check
def _forward(
    k, low, dual, v, query, bound, out, out_dual, log_sum, n, d, bounds, scale,
    FIRST: tl.constexpr, ASYMMETRIC: tl.constexpr, CAUSAL: tl.constexpr, SIGN: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """L' = softmax(M M^T / sqrt(D)) V and U' = C - L' of a block of tokens, and the log of the softmax's sum."""
    head, block = _place(n, BLOCK)
    rows = block * BLOCK + tl.arange(0, BLOCK)
    _clipped, _t, carried, left = _split(k, low, dual, bound, head, rows, n, d, bounds, FIRST, SIGN, WIDTH, WIDE)
    if ASYMMETRIC:
        left = _rows(query, head, rows, n, d, WIDTH)
    most = tl.full((BLOCK,), float("-inf"), WIDE)
    total = tl.zeros((BLOCK,), WIDE)
    mixed = tl.zeros((BLOCK, WIDTH), WIDE)
    stop = n
    if CAUSAL:
        stop = tl.minimum(n, (block + 1) * BLOCK)
    for start in range(0, stop, BLOCK):
        keys = start + tl.arange(0, BLOCK)
        right = _inner(k, low, dual, bound, head, keys, n, d, bounds, FIRST, SIGN, WIDTH, WIDE)
        values = _rows(v, head, keys, n, d, WIDTH)
        seen = (keys < n)[None, :]
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        scores = tl.dot(left, tl.trans(right), input_precision=PRECISION, out_dtype=WIDE) * scale
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        shrunk = tl.exp(most - higher)
        total = total * shrunk + tl.sum(weights, 1)
        mixed = mixed * shrunk[:, None]
        mixed += tl.dot(weights.to(values.dtype), values, input_precision=PRECISION, out_dtype=WIDE)
        most = higher
    mixed = (mixed / total[:, None]).to(out.dtype.element_ty)
    _store(out, mixed, head, rows, n, d, WIDTH)
    _store(out_dual, carried - mixed.to(WIDE), head, rows, n, d, WIDTH)
    tl.store(log_sum + head * n + rows, most + tl.log(total), mask=rows < n)


@triton.jit
@no_type_check
def _backward(
    k, low, dual, v, query, bound, log_sum, of_out, delta, of_dual,
    of_k, of_v, of_query, of_bound, of_low, of_earlier_dual, n, d, bounds, scale, LAST: tl.constexpr,  # noqa: N803
    FIRST: tl.constexpr, ASYMMETRIC: tl.constexpr, CAUSAL: tl.constexpr, SIGN: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Gradients of a block of tokens, as queries and as keys and values: of K, V, Q and t added to, of L and U new.

    With weights P = exp(scores - log_sum), O = P V and delta = rowsum(dO * O): dP = dO V^T, dV = P^T dO,
    d scores = P * (dP - delta).
    """
    head, block = _place(n, BLOCK)
    rows = block * BLOCK + tl.arange(0, BLOCK)
    own = rows < n
    clipped, t, _carried, inner = _split(k, low, dual, bound, head, rows, n, d, bounds, FIRST, SIGN, WIDTH, WIDE)
    values = _rows(v, head, rows, n, d, WIDTH)
    incoming = _rows(of_out, head, rows, n, d, WIDTH).to(values.dtype)
    own_sum = tl.load(log_sum + head * n + rows, mask=own, other=0.0)[:, None]
    own_delta = tl.load(delta + head * n + rows, mask=own, other=0.0)[:, None]
    left = inner
    if ASYMMETRIC:
        left = _rows(query, head, rows, n, d, WIDTH)
    of_inner = tl.zeros((BLOCK, WIDTH), WIDE)
    of_values = tl.zeros((BLOCK, WIDTH), WIDE)
    of_left = tl.zeros((BLOCK, WIDTH), WIDE)
    for start in range(0, n, BLOCK):
        others = start + tl.arange(0, BLOCK)
        there = others < n
        right = _inner(k, low, dual, bound, head, others, n, d, bounds, FIRST, SIGN, WIDTH, WIDE)
        their_values = _rows(v, head, others, n, d, WIDTH)
        theirs = _rows(of_out, head, others, n, d, WIDTH).to(values.dtype)
        their_sum = tl.load(log_sum + head * n + others, mask=there, other=0.0)[None, :]
        their_delta = tl.load(delta + head * n + others, mask=there, other=0.0)[None, :]
        as_query = own[:, None] & there[None, :]
        as_key = as_query
        if CAUSAL:
            as_query = as_query & (others[None, :] <= rows[:, None])
            as_key = as_key & (rows[:, None] <= others[None, :])
        scores = tl.dot(left, tl.trans(right), input_precision=PRECISION, out_dtype=WIDE) * scale
        transposed = scores
        if ASYMMETRIC:
            their_left = _rows(query, head, others, n, d, WIDTH)
            transposed = tl.dot(inner, tl.trans(their_left), input_precision=PRECISION, out_dtype=WIDE) * scale
        weights = tl.where(as_query, tl.exp(scores - own_sum), 0.0)
        their_weights = tl.where(as_key, tl.exp(transposed - their_sum), 0.0)
        of_scores = tl.dot(incoming, tl.trans(their_values), input_precision=PRECISION, out_dtype=WIDE)
        of_scores = weights * (of_scores - own_delta)
        of_transposed = tl.dot(values, tl.trans(theirs), input_precision=PRECISION, out_dtype=WIDE)
        of_transposed = their_weights * (of_transposed - their_delta)
        if ASYMMETRIC:
            of_left += tl.dot(of_scores.to(right.dtype), right, input_precision=PRECISION, out_dtype=WIDE)
            of_inner += tl.dot(of_transposed.to(right.dtype), their_left, input_precision=PRECISION, out_dtype=WIDE)
        else:
            both = (of_scores + of_transposed).to(right.dtype)
            of_inner += tl.dot(both, right, input_precision=PRECISION, out_dtype=WIDE)
        of_values += tl.dot(their_weights.to(theirs.dtype), theirs, input_precision=PRECISION, out_dtype=WIDE)
    of_inner = of_inner * scale
    _store(of_v, _rows(of_v, head, rows, n, d, WIDTH) + of_values, head, rows, n, d, WIDTH)
    if ASYMMETRIC:
        _store(of_query, _rows(of_query, head, rows, n, d, WIDTH) + of_left * scale, head, rows, n, d, WIDTH)
    gradient = of_inner
    if not LAST:
        gradient += _rows(of_dual, head, rows, n, d, WIDTH)
    outside = tl.where(tl.abs(clipped) >= t, gradient, 0.0)
    through = gradient - outside
    signed = tl.where(clipped > 0, outside, tl.where(clipped < 0, -outside, 0.0))
    place = of_bound + head * n + rows
    tl.store(place, tl.load(place, mask=own, other=0.0) + tl.sum(signed, 1), mask=own)
    _store(of_k, _rows(of_k, head, rows, n, d, WIDTH) + through, head, rows, n, d, WIDTH)
    if not FIRST:
        _store(of_low, outside, head, rows, n, d, WIDTH)
        if SIGN > 0:
            _store(of_earlier_dual, through, head, rows, n, d, WIDTH)
        else:
            _store(of_earlier_dual, through - 2 * of_inner, head, rows, n, d, WIDTH)
