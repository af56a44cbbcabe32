"""Seeds for the global random generators, which training uses; afterwards their old states are restored."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed


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
