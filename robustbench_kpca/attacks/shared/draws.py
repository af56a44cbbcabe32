"""Random draws that depend only on (key, counter) or (key, run) of each sample, not on its batch."""

import math

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.attacks.shared import generators
from robustbench_kpca.attacks.shared.ball import project
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels


def stream(key: int, counter: int) -> np.random.Generator:
    """Return the generator of `key`, advanced by `counter` * 2^128 blocks."""
    rng = generator(key)
    assert isinstance(rng.bit_generator, np.random.Philox)
    rng.bit_generator.advance(counter << 128)
    return rng


def uniforms(keys: Keys, counters: Labels, count: int) -> Float64[Tensor, "batch {count}"]:
    """Draw `count` numbers per sample, uniform in [0, 1): multiples of 2^-53."""
    return generators.uniforms(generators.splitmix64(keys, counters, count))


def signs(keys: Keys, counters: Labels, like: Images) -> Images:
    """Draw an image of -1 and +1 per sample, both equally likely."""
    size = math.prod(like.shape[1:])
    octets = generators.splitmix64(keys, counters, -(-size // 64)).view(torch.uint8)
    places = torch.arange(7, -1, -1, dtype=torch.uint8, device=octets.device)
    bits = (octets[:, :, None] >> places).bitwise_and_(1)
    return bits.flatten(1)[:, :size].to(like.dtype).mul_(2).sub_(1).view(like.shape)


def gaussians(keys: Keys, counters: Labels, like: Images) -> Images:
    """Draw an image of independent standard normals per sample."""
    pairs = zip(keys.tolist(), counters.tolist(), strict=True)
    draws = [stream(*pair).standard_normal(like.shape[1:]) for pair in pairs]
    return torch.from_numpy(np.stack(draws)).to(like)


def noise(keys: Keys, runs: Labels, like: Images) -> Images:
    """Draw an image of independent standard normals per sample; each run has its own stream."""
    draws = [rng.standard_normal(like.shape[1:]) for rng in _run_generators(keys, runs)]
    return torch.from_numpy(np.stack(draws)).to(like)


def on_sphere(centre: Images, threat: Threat, keys: Keys, runs: Labels) -> Images:
    """Draw one point per sample on the sphere of radius eps, clipped to the box; each run has its own stream.

    L-infinity: uniform in the cube, scaled to its surface. L2 and L1: a Gaussian direction.
    """
    size, draws = math.prod(centre.shape[1:]), []
    for rng in _run_generators(keys, runs):
        drawn = rng.uniform(-1, 1, size) if threat.norm == "linf" else rng.standard_normal(size)
        direction = torch.from_numpy(drawn)
        draws.append(direction / direction.norm(p={"linf": math.inf, "l2": 2, "l1": 1}[threat.norm]))
    delta = threat.eps * torch.stack(draws).view(centre.shape)
    return project(centre + delta.to(centre), centre, threat)


def _run_generators(keys: Keys, runs: Labels) -> list[np.random.Generator]:
    pairs = zip(keys.tolist(), runs.tolist(), strict=True)
    return [generator(sample_key(key, "run", str(run))) for key, run in pairs]
