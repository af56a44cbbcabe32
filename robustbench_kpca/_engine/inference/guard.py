"""What a model may not do while it is shown images, and what is worth a warning; watched around every call."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError

SLOWER = 20.0  # warn of a pass that takes this many times as long as the slowest of the first ones,
SLOW = 1.0  # if it takes at least this many seconds
FIRST = 4  # passes that are the measure of the later ones
GROWTH = 2**30  # growth of the memory in bytes, since the first passes, that is worth a warning
EVERY = 16  # passes between two looks at the memory

_LOG = logging.getLogger("robustbench_kpca")


def _set_default_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)  # None is faster, and means the CPU


_Setting = tuple[Callable[[], Any], Callable[[Any], Any]]
_SETTINGS: dict[str, _Setting] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (torch.get_default_device, _set_default_device),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
}


@contextmanager
def unharmed(x: Tensor) -> Iterator[None]:
    """Refuse a model that writes into `x`, or changes a setting of torch on which all later numbers depend.

    The settings are put back. Writing is seen by the version of the tensor, which every operation in place increases;
    it is not seen where `x` is an inference tensor, or is written through `x.data`. So `x` should be a copy.

    Raises:
        BadInputError: the model did one of both.
    """
    version = _version(x)
    before = {name: read() for name, (read, _) in _SETTINGS.items()}
    try:
        yield
    finally:
        changed = [name for name, (read, _) in _SETTINGS.items() if read() != before[name]]
        for name in changed:
            _SETTINGS[name][1](before[name])
    if changed:
        raise BadInputError(
            f"the model changed torch's {' and '.join(changed)}, on which all later numbers depend",
            fix="leave torch's settings alone in forward",
        )
    if _version(x) != version:
        raise BadInputError(
            "the model wrote into the images that it was shown",
            fix="work on a copy, such as x = x.clone(), and use no operation in place on the input",
        )


def _version(x: Tensor) -> int:
    return 0 if x.is_inference() else x._version  # noqa: SLF001 (torch has no public name for it)


def require_one_precision(model: nn.Module, x: Tensor) -> None:
    """Refuse images of another precision than the weights."""
    weights = next((value.dtype for value in model.parameters() if value.is_floating_point()), x.dtype)
    if weights != x.dtype:
        named = [str(dtype).removeprefix("torch.") for dtype in (x.dtype, weights)]
        raise BadInputError(
            f"images of {named[0]} for a model with weights of {named[1]}",
            expected="one precision",
            fix="convert one of them to float32, such as model.float() or images.astype('float32')",
        ) from None


class Costs:
    """Time and memory of the passes of one model. A growing cost is warned of once, and changes nothing else."""

    def __init__(self) -> None:
        self.passes, self.slowest, self.memory = 0, 0.0, 0
        self.warned: set[str] = set()

    def note(self, seconds: float) -> None:
        """Note that a pass took so long."""
        self.passes += 1
        if self.passes <= FIRST:
            self.slowest = max(self.slowest, seconds)
            self.memory = resident() if self.passes == FIRST else 0
            return
        if seconds > max(SLOW, SLOWER * self.slowest):
            self._warn(
                "time",
                f"pass {self.passes} of the model took {seconds:.1f} s, the first ones at most "
                f"{self.slowest:.2g} s: it may keep what it is shown, or the device is busy",
            )
        if self.passes % EVERY == 0 and (growth := resident() - self.memory) > GROWTH:
            self._warn(
                "memory",
                f"memory grew by {growth / 2**30:.2g} GiB in {self.passes} passes of the model: "
                "it may keep what it is shown",
            )

    def _warn(self, about: str, text: str) -> None:
        if about not in self.warned:
            self.warned.add(about)
            _LOG.warning("warning: %s", text)


def resident() -> int:
    """Return the memory of this process in bytes; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
