"""Count the calls by which an attack waits for the device that runs the model: looks at the values of tensors.

On a GPU, work is queued; the program runs ahead until it looks at a value. The count is made on a CPU, while the attacks
are told that looking makes them wait there, as on a GPU.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from robustbench_kpca.attack_loop.engine import Engine
from robustbench_kpca.attacks.shared import rows

LOOKS = {
    "item", "tolist", "numpy", "cpu", "nonzero", "masked_select", "equal", "unique",
    "__bool__", "__float__", "__int__", "__index__", "__array__", "__contains__",
}  # fmt: skip


class Waits(TorchFunctionMode):
    """Counts in `found`, by name; an index of booleans is called `mask`."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the call, if it waits, and make it."""
        name = getattr(func, "__name__", "")
        if name in LOOKS or (name == "to" and "cpu" in (*args[1:], *(kwargs or {}).values())):
            self.found[name.strip("_")] += 1
        elif name in ("__getitem__", "__setitem__"):
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            self.found["mask"] += any(isinstance(one, Tensor) and one.dtype == torch.bool for one in parts)
        return func(*args, **(kwargs or {}))


@contextmanager
def counted_waits() -> Iterator[list[Counter[str]]]:
    """Yield a list that gets a counter for every step of every engine that runs meanwhile."""
    steps: list[Counter[str]] = []
    original, at_once = Engine._step, rows.AT_ONCE

    def step(engine: Engine, pool: Any) -> None:
        with Waits() as waits:
            original(engine, pool)
        steps.append(waits.found)

    Engine._step, rows.AT_ONCE = step, frozenset()  # type: ignore[method-assign]
    try:
        yield steps
    finally:
        Engine._step, rows.AT_ONCE = original, at_once  # type: ignore[method-assign]
