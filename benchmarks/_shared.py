"""Shared by the benchmarks: a header line, interleaved timing, memory, and how often an attack waits for a device."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from robustbench_kpca._engine.attack_loop.engine import CleanBatch, Engine
from robustbench_kpca._engine.inference.environment import processor, version
from robustbench_kpca.attacks.shared import rows
from robustbench_kpca.study.reproduction.measuring import elapsed, interleaved

PACKAGES = ("torch", "torchattacks", "numpy")
LOOKS = {
    "item", "tolist", "cpu", "nonzero", "masked_select", "equal", "unique",
    "__bool__", "__float__", "__int__", "__index__", "__array__", "__contains__",
}  # fmt: skip
"""By these calls a program looks at the values of tensors."""


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


class Waits(TorchFunctionMode):
    """Counts the calls that look at values, by name; an index of booleans is called `mask`.

    On a GPU work is queued, and a program runs ahead until it looks. The count is made on a CPU, where attacks are told
    that looking makes them wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the call if it waits, and make it."""
        name = getattr(func, "__name__", "")
        if name in LOOKS or (name == "to" and "cpu" in (*args[1:], *(kwargs or {}).values())):
            self.found[name.strip("_")] += 1
        elif name in ("__getitem__", "__setitem__"):
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            self.found["mask"] += any(isinstance(one, Tensor) and one.dtype == torch.bool for one in parts)
        return func(*args, **(kwargs or {}))

    def take(self) -> Counter[str]:
        """Return the counts since the last time."""
        found, self.found = +self.found, Counter()
        return found


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Let attacks do what they do where looking at values waits."""
    before = rows.AT_ONCE
    rows.AT_ONCE = frozenset()
    try:
        yield
    finally:
        rows.AT_ONCE = before


def waits(engine: Engine, source: Iterator[CleanBatch]) -> list[Counter[str]]:
    """Run an engine; return the waits of every batch: the clean one, every step, and confirmations."""
    found: list[Counter[str]] = []
    with as_on_a_gpu(), Waits() as mode:
        engine.run(source, lambda: found.append(mode.take()))
    return found
