"""What the benchmarks share: the line that says where they ran, and interleaved CPU times."""

import statistics
import time
from collections.abc import Callable

import torch

from robustbench_kpca.evaluation.environment import processor, version

PACKAGES = ("torch", "torchattacks", "numpy")


def header() -> str:
    """Name versions, threads and processor."""
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return f"{versions}; threads: {torch.get_num_threads()}; processor: {processor()}"


def cpu_times(contenders: tuple[Callable[[], object], ...], repeats: int) -> list[float]:
    """Median process CPU seconds of each contender; they take turns, so that a drift of the machine meets all."""
    times: list[list[float]] = [[] for _ in contenders]
    for _ in range(repeats):
        for contender, own in zip(contenders, times, strict=True):
            started = time.process_time()
            contender()
            own.append(time.process_time() - started)
    return [statistics.median(own) for own in times]
