"""The machine and the random generators of a run: what changes the last bits of its numbers, and what is restored."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from robustbench_kpca._engine.inference.environment import device_name, processor, version

Machine: TypeAlias = dict[str, str | int]
"""`threads` and `processes`, the versions of `torch` and `timm`, `device` and `processor`; and of several models
that are trained in one pass, `together`, their number."""


@contextmanager
def own_threads(count: int | None) -> Iterator[None]:
    """Let torch use `count` CPU threads, None for its own choice; restore the old number at the end."""
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


def this_machine(accelerator: Accelerator, together: int = 1) -> Machine:
    """Describe the machine: two runs of one recipe and seed on equal machines have equal bits on a CPU."""
    device = accelerator.device
    return {
        "threads": torch.get_num_threads(),
        "processes": accelerator.num_processes,
        "torch": version("torch"),
        "timm": version("timm"),
        "device": device_name(device),
        "processor": processor(),
    } | ({"together": together} if together > 1 else {})


def difference(before: Mapping[str, str | int], now: Mapping[str, str | int]) -> str:
    """Return what is another, such as `threads 1, now 2`; empty if nothing is."""
    changed = [name for name in now if name in before and before[name] != now[name]]
    return ", ".join(f"{name} {before[name]}, now {now[name]}" for name in changed)


@contextmanager
def own_generators() -> Iterator[None]:
    """Restore the states of Python's, numpy's and torch's global generators at the end."""
    plain, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(arrays)  # noqa: NPY002


def epoch_seed(seed: int, epoch: int, accelerator: Accelerator) -> int:
    """Return the seed of an epoch in this process; processes have different seeds, so that augmentations differ."""
    rank: int = accelerator.process_index
    return seed * 100_003 + epoch + 7_919_000_003 * rank


def seed_generators(seed: int) -> None:
    """Seed all global generators; timm's augmentation, drop-path and initialisation use them."""
    set_seed(seed % 2**32)
