"""`principal_attention_pursuit` against a literal transcription of the algorithm, written below.

Measured on random keys and values in single precision: process CPU time (the median of interleaved calls, after one
call that is not timed), forward without gradients and forward + backward, and the largest absolute difference of the
outputs.

    python benchmarks/attention.py [--repeats 20] [--threads 1]
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
from _shared import cpu_times, header
from tabulate import tabulate
from torch import Tensor

from robustbench_kpca.attention.rpc import principal_attention_pursuit

SHAPES = {"tiny": (8, 3, 197, 64), "base": (2, 12, 197, 64), "digits": (64, 3, 17, 16)}
ITERATIONS = (1, 4)
LAM = 4.0
COLUMNS = (
    "shape", "(B, H, N, D)", "n",
    "forward ms, ours", "literal", "literal / ours",
    "forward + backward ms, ours", "literal", "literal / ours",
    "max. difference",
)  # fmt: skip
FORMATS = ("", "", "", ".2f", ".2f", ".2f", ".2f", ".2f", ".2f", ".1e")
Pursuit = Callable[[Tensor, Tensor], Tensor]


def literal(k: Tensor, v: Tensor, iterations: int, lam: float, width: int) -> Tensor:
    """Teo & Nguyen (2024), arXiv:2406.13762, Algorithm 1, with the released code's threshold lam * mu."""
    tokens, dim = k.shape[-2:]
    mu = tokens * width / (4 * k.abs().sum((-2, -1), keepdim=True))
    low_rank = y = torch.zeros_like(k)
    for _ in range(iterations):
        residual = k - low_rank + y / mu
        sparse = residual.sign() * (residual.abs() - lam * mu).clamp_min(0)
        inner = k - sparse - y / mu
        low_rank = ((inner @ inner.transpose(-2, -1)) / math.sqrt(dim)).softmax(-1) @ v
        y = y + mu * (k - low_rank - sparse)
    return low_rank


def contenders(iterations: int, width: int) -> tuple[Pursuit, Pursuit]:
    """Return ours and the transcription, as functions of keys and values."""
    return (
        lambda k, v: principal_attention_pursuit(k, v, iterations=iterations, lam=LAM, width=width),
        lambda k, v: literal(k, v, iterations, LAM, width),
    )


def forward(pursuit: Pursuit, k: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        return pursuit(k, v)


def forward_backward(pursuit: Pursuit, k: Tensor, v: Tensor, cotangent: Tensor) -> tuple[Tensor, ...]:
    inputs = (k.detach().requires_grad_(), v.detach().requires_grad_())
    return torch.autograd.grad(pursuit(*inputs), inputs, cotangent)


def compare(name: str, iterations: int, repeats: int) -> list[Any]:
    """Measure one row of the table."""
    shape = SHAPES[name]
    _, heads, _, dim = shape
    rng = torch.Generator().manual_seed(0)
    k, v, cotangent = (torch.randn(shape, generator=rng) for _ in range(3))
    ours, theirs = contenders(iterations, heads * dim)
    difference = float((forward(ours, k, v) - forward(theirs, k, v)).abs().max())
    fast, slow = cpu_times((lambda: forward(ours, k, v), lambda: forward(theirs, k, v)), repeats)
    for pursuit in (ours, theirs):
        forward_backward(pursuit, k, v, cotangent)
    fast_both, slow_both = cpu_times(
        (lambda: forward_backward(ours, k, v, cotangent), lambda: forward_backward(theirs, k, v, cotangent)), repeats
    )
    return [
        name, shape, iterations,
        1e3 * fast, 1e3 * slow, slow / fast,
        1e3 * fast_both, 1e3 * slow_both, slow_both / fast_both,
        difference,
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Principal Attention Pursuit against its literal transcription.")
    parser.add_argument("--repeats", type=int, default=20, help="timed calls of each, of which the median is shown")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(header(), end="\n\n")
    rows = [compare(name, iterations, arguments.repeats) for name in SHAPES for iterations in ITERATIONS]
    print(tabulate(rows, COLUMNS, tablefmt="github", floatfmt=FORMATS))


if __name__ == "__main__":
    main()
