"""Random streams per sample: a stream is a function of (seed, scope, sample id) only.

Results therefore do not depend on the order of samples, the batches, the number of workers or other runs. The global
generators of numpy and torch are never used.
"""

import hashlib

import numpy as np


def sample_key(seed: int, scope: str, sample: str) -> int:
    """Return the 63-bit key of a sample's stream in a scope, such as an attack stage or a corruption at a severity."""
    text = f"{seed}\x1f{scope}\x1f{sample}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def generator(key: int) -> np.random.Generator:
    """Return the counter-based generator (Philox 4x64; Salmon et al. 2011) of the stream `key`."""
    return np.random.Generator(np.random.Philox(key=np.array([key, 0], dtype=np.uint64)))
