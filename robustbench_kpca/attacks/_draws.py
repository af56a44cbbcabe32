"""Draws from each sample's own stream, whatever the batch: functions of (key, counter) or of (key, run)."""

import math

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from robustbench_kpca.attacks._ball import project
from robustbench_kpca.randomness import generator, sample_key
from robustbench_kpca.threat import Threat
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


def noise(keys: Keys, runs: Labels, like: Images) -> Images:
    """Draw an image of independent standard normals per sample; each run has a stream of its own."""
    draws = [rng.standard_normal(like.shape[1:]) for rng in _of_runs(keys, runs)]
    return torch.from_numpy(np.stack(draws)).to(like)


def on_sphere(centre: Images, threat: Threat, keys: Keys, runs: Labels) -> Images:
    """Draw one point per sample on the sphere of radius eps, clipped to the box; each run has a stream of its own.

    L-infinity: uniform in the cube, scaled to its surface. L2 and L1: a Gaussian direction.
    """
    size, draws = math.prod(centre.shape[1:]), []
    for rng in _of_runs(keys, runs):
        drawn = rng.uniform(-1, 1, size) if threat.norm == "linf" else rng.standard_normal(size)
        direction = torch.from_numpy(drawn)
        draws.append(direction / direction.norm(p={"linf": math.inf, "l2": 2, "l1": 1}[threat.norm]))
    delta = threat.eps * torch.stack(draws).view(centre.shape)
    return project(centre + delta.to(centre), centre, threat)


def _of_runs(keys: Keys, runs: Labels) -> list[np.random.Generator]:
    pairs = zip(keys.tolist(), runs.tolist(), strict=True)
    return [generator(sample_key(key, "run", str(run))) for key, run in pairs]
