"""Training may use the global random generators: they are seeded for it, and left as they were found."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed


@contextmanager
def own_generators() -> Iterator[None]:
    """Put Python's, numpy's and torch's global generators back at the end."""
    plain, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(arrays)  # noqa: NPY002


def epoch_seed(seed: int, epoch: int, accelerator: Accelerator) -> int:
    """Return the seed of one process's epoch; were it the same for all, copies of an image would be augmented alike."""
    rank: int = accelerator.process_index
    return seed * 100_003 + epoch + 7_919_000_003 * rank


def seed_generators(seed: int) -> None:
    """Seed them all; timm's augmentation, drop-path and initialisation draw from them."""
    set_seed(seed % 2**32)
