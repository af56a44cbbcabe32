"""Gradients of several losses at the same images: they share batches or, where those are full, one forward pass."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from robustbench_kpca._core.errors import BenchmarkError
from robustbench_kpca._engine.inference.acceleration import compiled_as
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.types import Images, Logits, Loss, PerSample

T = TypeVar("T")
Found = tuple[PerSample, Images, Logits]
"""Losses of one batch, their gradients, and the logits."""


def gradient_of_each(runner: Runner, x: Images, losses: Sequence[Loss]) -> Iterator[Found]:
    """Return `Runner.gradient` of every loss at x, in turn; the same numbers, to the bit.

    With k losses and a batch that holds x m times, k / m batches are shown if m > 1. Else there is one forward pass and
    k backward passes. The second of them is computed twice, once for a runner: where a second backward pass through a
    graph differs from one through a new graph, all later ones are computed by new graphs.
    """
    together = runner.batch_size // max(len(x), 1)
    if len(losses) == 1 or runner.draws > 1 or not together:
        yield from (runner.gradient(x, loss) for loss in losses)
    elif together > 1:
        yield from _side_by_side(runner, x, losses, together)
    elif compiled_as() is None:
        yield from _from_one_graph(runner, x, losses)
    else:
        yield from (runner.gradient(x, loss) for loss in losses)


def _side_by_side(runner: Runner, x: Images, losses: Sequence[Loss], together: int) -> Iterator[Found]:
    """Show the images several times in a batch, once for each loss."""
    for first in range(0, len(losses), together):
        group = losses[first : first + together]

        def joined(logits: Tensor, group: Sequence[Loss] = group) -> Tensor:
            parts = logits.split(len(x))
            return torch.cat([loss(part) for loss, part in zip(group, parts, strict=True)])

        joint = runner.gradient(torch.cat([x] * len(group)), joined)
        yield from zip(*(part.split(len(x)) for part in joint), strict=True)


def _from_one_graph(runner: Runner, x: Images, losses: Sequence[Loss]) -> Iterator[Found]:
    """Go back through one graph for every loss; where that fails, or would differ, go through a new one."""
    graph = _attempt(runner, lambda: runner.graph(x))
    unknown = runner.fewer.known(len(x), runner.batch_size, gradient=True) is None
    for number, loss in enumerate(losses):
        result = None if graph is None else _attempt(runner, partial(runner.through, *graph, loss))
        if result is None:
            graph = None
            yield runner.gradient(x, loss)
            continue
        if number == 1 and (runner.keeps_graphs is None or unknown):
            fresh = runner.gradient(x, loss)
            runner.keeps_graphs = all(map(torch.equal, result, fresh))
            result, graph = fresh, graph if runner.keeps_graphs else None
        yield result


def _attempt(runner: Runner, work: Callable[[], T]) -> T | None:
    """Return what `work` returns, or None if this runner goes through every graph once only; an error decides that."""
    if runner.keeps_graphs is False:
        return None
    try:
        return work()
    except (BenchmarkError, RuntimeError, MemoryError):  # out of memory, or a model whose graphs cannot be used again
        runner.keeps_graphs = False
        return None
