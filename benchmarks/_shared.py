"""Shared by the benchmarks: a header line, interleaved timing, memory, and attacks as they run on a GPU."""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from robustbench_kpca._engine.inference.environment import processor, version
from robustbench_kpca.attacks.shared import rows
from robustbench_kpca.study.reproduction.measuring import elapsed, interleaved

PACKAGES = ("torch", "torchattacks", "numpy")


def header(packages: Iterable[str] = PACKAGES) -> str:
    """Return versions, threads and processor in one line."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return f"{versions}; threads: {torch.get_num_threads()}; processor: {processor()}"


def cpu_times(contenders: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the median process CPU seconds of each contender, summed over all threads."""
    return [statistics.median(own) for own in interleaved(contenders, repeats, time.process_time)]


def wall_times(contenders: Sequence[Callable[[], object]], repeats: int, device: str = "cpu") -> list[float]:
    """Return the median elapsed seconds of each contender, with GPU synchronisation."""
    return [statistics.median(own) for own in interleaved(contenders, repeats, elapsed(device))]


def kept_bytes(run: Callable[[], object], given: Iterable[Tensor]) -> int:
    """Return the bytes that autograd keeps for the backward pass of `run`: each storage once, without `given`."""
    kept: dict[int, Tensor] = {}  # keep the tensors alive, so that their addresses are not reused
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.setdefault(tensor.untyped_storage().data_ptr(), tensor), lambda tensor: tensor
    ):
        result = run()
    for tensor in given:
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    del result
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Let attacks do what they do where looking at values waits."""
    before = rows.AT_ONCE
    rows.AT_ONCE = frozenset()
    try:
        yield
    finally:
        rows.AT_ONCE = before
