"""Randomness belongs to the sample: a stream is a function of (seed, scope, sample id) and of nothing else.

So no result depends on order, batching, refilling, worker count or on what else runs, and numpy's and torch's global
generators are never touched.
"""

import hashlib

import numpy as np


def sample_key(seed: int, scope: str, sample: str) -> int:
    """63-bit key of one sample's stream in one scope (an attack stage, a corruption at a severity)."""
    text = f"{seed}\x1f{scope}\x1f{sample}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def generator(key: int) -> np.random.Generator:
    """Counter-based generator (Philox 4x64; Salmon et al. 2011) of stream `key`."""
    return np.random.Generator(np.random.Philox(key=np.array([key, 0], dtype=np.uint64)))
