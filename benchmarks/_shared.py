"""Shared by the benchmarks: a header line (versions, threads, processor), interleaved timing, memory measurement."""

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler logs every start and stop

import torch
from torch import Tensor

from robustbench_kpca.inference.environment import processor, version

PACKAGES = ("torch", "torchattacks", "numpy")


def header(packages: Iterable[str] = PACKAGES) -> str:
    """Return versions, threads and processor in one line."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return f"{versions}; threads: {torch.get_num_threads()}; processor: {processor()}"


def interleaved(
    contenders: Sequence[Callable[[], object]], repeats: int, clock: Callable[[], float]
) -> list[list[float]]:
    """Return the seconds of every call of each contender; they take turns, so that slow drift affects all equally."""
    times: list[list[float]] = [[] for _ in contenders]
    for _ in range(repeats):
        for contender, own in zip(contenders, times, strict=True):
            started = clock()
            contender()
            own.append(clock() - started)
    return times


def cpu_times(contenders: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the median process CPU seconds of each contender, summed over all threads."""
    return [statistics.median(own) for own in interleaved(contenders, repeats, time.process_time)]


def wall_times(contenders: Sequence[Callable[[], object]], repeats: int, device: str = "cpu") -> list[float]:
    """Return the median elapsed seconds of each contender, with GPU synchronisation."""

    def clock() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    return [statistics.median(own) for own in interleaved(contenders, repeats, clock)]


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


def peak_bytes(run: Callable[[], object], device: str = "cpu") -> int:
    """Return the peak bytes of tensors allocated during `run`."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result: Any = run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profile:
        result = run()
    del result
    assert profile.profiler is not None
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    alive = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    return most
