"""Count the calls by which an attack waits for the device that runs the model: looks at the values of tensors.

On a GPU, work is queued, and the program runs ahead until it looks at a value. The count is made on a CPU, where the
attacks are told that looking makes them wait, as it does there.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from robustbench_kpca.attack_loop.engine import CleanBatch, Engine
from robustbench_kpca.attacks.shared import rows

LOOKS = {
    "item", "tolist", "cpu", "nonzero", "masked_select", "equal", "unique",
    "__bool__", "__float__", "__int__", "__index__", "__array__", "__contains__",
}  # fmt: skip


class Waits(TorchFunctionMode):
    """Counts the calls by name; an index of booleans is called `mask`."""

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
