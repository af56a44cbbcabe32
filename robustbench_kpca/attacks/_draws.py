"""Fresh draws at every iteration from each sample's own stream: functions of (key, counter), whatever the batch."""

import math

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from robustbench_kpca.randomness import generator
from robustbench_kpca.types import Images, Keys, Labels


def stream(key: int, counter: int) -> np.random.Generator:
    """Return the generator of `key`, moved to the beginning of its `counter`-th stretch of 2^128 blocks."""
    rng = generator(key)
    assert isinstance(rng.bit_generator, np.random.Philox)
    rng.bit_generator.advance(counter << 128)
    return rng


def uniforms(keys: Keys, counters: Labels, count: int) -> Float64[Tensor, "batch {count}"]:
    """Draw `count` numbers per sample, uniform in [0, 1)."""
    draws = [stream(*pair).random(count) for pair in zip(keys.tolist(), counters.tolist(), strict=True)]
    return torch.from_numpy(np.stack(draws)).to(keys.device)


def signs(keys: Keys, counters: Labels, like: Images) -> Images:
    """Draw an image of -1 and +1 per sample, both equally likely."""
    size = math.prod(like.shape[1:])
    pairs = zip(keys.tolist(), counters.tolist(), strict=True)
    draws = [np.frombuffer(stream(*pair).bytes(-(-size // 8)), dtype=np.uint8) for pair in pairs]
    bits = np.unpackbits(np.stack(draws), axis=1, count=size)
    return (torch.from_numpy(bits).to(like) * 2 - 1).view(like.shape)


def gaussians(keys: Keys, counters: Labels, like: Images) -> Images:
    """Draw an image of independent standard normals per sample."""
    pairs = zip(keys.tolist(), counters.tolist(), strict=True)
    draws = [stream(*pair).standard_normal(like.shape[1:]) for pair in pairs]
    return torch.from_numpy(np.stack(draws)).to(like)
