"""Geometry of the threat models: distance, projection, steepest ascent, uniform draws from the ball."""

import math

import torch
from jaxtyping import Shaped
from torch import Tensor

from robustbench_kpca.randomness import generator
from robustbench_kpca.threat import Norm, Threat
from robustbench_kpca.types import Images, Keys, PerSample


def per_sample(values: Shaped[Tensor, " batch"], like: Images) -> Tensor:
    """Reshape one value per sample so that it broadcasts against images."""
    return values.view(-1, *[1] * (like.ndim - 1))


def distance(a: Images, b: Images, norm: Norm) -> PerSample:
    """Compute ||a - b|| per sample, in double precision."""
    delta = (a.double() - b.double()).flatten(1)
    return delta.abs().amax(1) if norm == "linf" else delta.norm(dim=1)


def project(x: Images, centre: Images, threat: Threat) -> Images:
    """Project onto the ball around `centre`, then clip to the box [0, 1].

    For L-infinity this is the exact projection onto the intersection; for L2 it is the usual composition (the box
    contains the centre, so clipping never leaves the ball).
    """
    delta = x - centre
    if threat.norm == "linf":
        delta = delta.clamp(-threat.eps, threat.eps)
    else:
        length = delta.flatten(1).norm(dim=1)
        delta = delta * per_sample((threat.eps / length.clamp_min(1e-12)).clamp(max=1), delta)
    return (centre + delta).clamp(0, 1)


def ascent_direction(gradient: Images, norm: Norm) -> Images:
    """Return the unit step of steepest ascent: sign(g) for L-infinity, g / ||g||_2 for L2 (zero where g is zero)."""
    if norm == "linf":
        return gradient.sign()
    return gradient / per_sample(gradient.flatten(1).norm(dim=1).clamp_min(1e-12), gradient)


def uniform_in_ball(centre: Images, threat: Threat, keys: Keys) -> Images:
    """Draw one point per sample, uniform in its ball, clipped to the box; from the sample's own stream.

    L2: a Gaussian direction, at radius eps * U^(1/d).
    """
    shape = tuple(centre.shape[1:])
    size = math.prod(shape)
    draws = []
    for key in keys.tolist():
        rng = generator(key)
        if threat.norm == "linf":
            draws.append(torch.from_numpy(rng.uniform(-threat.eps, threat.eps, size)))
        else:
            direction = torch.from_numpy(rng.standard_normal(size))
            radius = threat.eps * rng.uniform() ** (1 / size)
            draws.append(direction * (radius / direction.norm()))
    delta = torch.stack(draws).view(-1, *shape).to(centre)
    return project(centre + delta, centre, threat)
