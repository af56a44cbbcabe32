"""What a row asks of a device, counted by one forward pass: the default batch size of accelerators follows from it.

A pass of n rows takes about L + n c seconds: L to launch its operators, whatever n is, and c for the work of a row. The
rates are round assumptions, not measurements; `benchmarks/gpu.py batches` measures them. Nothing here looks at a clock,
so the same model gets the same batch size in every run and process.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.types import Images

MOST = 4096
"""Rows of the largest batch that is chosen."""
GAIN = 0.1
"""A batch is doubled where this saves at least that share of the seconds of a row."""
SHARE = 0.5
"""Share of the memory of a device that the results of a forward pass may take."""


@dataclass(frozen=True)
class Rates:
    """What a device does: `launch` seconds an operator, `operations` a second, `bandwidth` in bytes a second."""

    launch: float
    operations: float
    bandwidth: float


DEVICES = {
    "CPU core": Rates(launch=0, operations=7e10, bandwidth=2.5e9),
    "A100": Rates(launch=1e-5, operations=1e13, bandwidth=1.5e12),
    "H100": Rates(launch=1e-5, operations=3e13, bandwidth=2.5e12),
}
"""Single precision without TF32: of GPUs half of what their makers state; of a core, round numbers of our own."""
ACCELERATOR = DEVICES["H100"]
"""Whose rates decide on a batch, whatever the device: what fills the largest one fills all."""


@dataclass(frozen=True)
class Work:
    """What a forward pass asks of a device.

    Attributes:
        operators: launched, whatever the number of rows; views are none.
        operations: operations of the matrix products and convolutions of a row, two for each multiply-add.
        bytes: bytes of all results for a row; a gradient keeps about as much.
    """

    operators: int
    operations: int
    bytes: int

    def once(self, draws: int) -> "Work":
        """Return what one of several draws asks, of which all were counted."""
        return Work(self.operators // draws, self.operations // draws, self.bytes // draws)

    def seconds(self, rows: int, rates: Rates) -> float:
        """Return about how many seconds a forward pass takes for each of `rows` rows."""
        moved = 2 * self.bytes  # results are written and read
        return self.operators * rates.launch / rows + max(self.operations / rates.operations, moved / rates.bandwidth)


class _Results(TorchDispatchMode):
    """Counts operators and the bytes of their results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {_place(tensor) for tensor in _tensors((args, kwargs))}
        result = func(*args, **kwargs or {})
        new = [tensor for tensor in _tensors(result) if _place(tensor) not in inputs]
        self.operators += bool(new) or func._schema.is_mutable  # noqa: SLF001 (torch has no public name)
        self.bytes += sum(tensor.nbytes for tensor in new)
        return result


def work_of(runner: Runner, row: Images) -> Work:
    """Count one forward pass of one row, attention as plain products.

    Args:
        runner: runner of the model, with a batch size of 1.
        row: one input, of shape (1, ...).
    """
    from torch.utils.flop_counter import FlopCounterMode  # a second of imports, of Triton

    eager = torch.compiler.set_stance("force_eager")  # a compiled model would be compiled for this row, too
    with eager, sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as flops, _Results() as results:
        runner.logits(row.to(runner.device))
    return Work(results.operators, int(flops.get_total_flops()), results.bytes)


def memory_of(device: torch.device) -> int | None:
    """Return the bytes of memory of an accelerator; None for a CPU, and where it is not known."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def larger(size: int, work: Work, memory: int, samples: int, rates: Rates = ACCELERATOR) -> int:
    """Double a batch size while this saves `GAIN` of the seconds of a row, samples are left, and memory suffices."""
    while size < samples and 2 * size <= MOST and 2 * size * work.bytes <= SHARE * memory:
        if work.seconds(2 * size, rates) > (1 - GAIN) * work.seconds(size, rates):
            break
        size *= 2
    return size


def _tensors(nested: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(nested) if isinstance(leaf, Tensor)]


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)
