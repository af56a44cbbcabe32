"""Geometry of the threat models: distance, projection, steepest ascent, uniform draws from the ball."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float64, Shaped
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.randomness import generator
from robustbench_kpca.attacks.shared.generators import first_uniforms
from robustbench_kpca.attacks.shared.patches import nearest, random_places
from robustbench_kpca.attacks.shared.rows import waits
from robustbench_kpca.protocols.threat import COUNTED, Norm, Threat
from robustbench_kpca.types import Images, Keys, Logits, Mask, PerSample

SLACK = 1e-6
"""Rounding in single precision that is allowed beyond eps: absolute for eps <= 1, relative to eps above."""
_PART = 2**15  # numbers of the samples that are computed at a time where precision is double


def require_norm(threat: Threat, attack: str, *supported: Norm) -> None:
    """Refuse a norm that `attack` does not support: its search would fail and the model would seem robust.

    Raises:
        BadInputError: the norm is not one of `supported`.
    """
    if threat.norm not in supported:
        raise BadInputError(f"attack '{attack}' in {threat.norm}", expected=f"norm = {' or '.join(supported)}")


def furthest(eps: float) -> float:
    """Return the distance up to which an image counts as inside a ball of radius eps, for rounding."""
    return eps + SLACK * max(1.0, eps)


def require_box(threat: Threat, attack: str) -> None:
    """Refuse a threat model without clipping for an attack that needs the box [0, 1]."""
    if not threat.clip:
        raise BadInputError(f"attack '{attack}' without clipping", expected="clip = true")


def into_box(x: Images, threat: Threat) -> Images:
    """Clip to [0, 1] if the threat model does."""
    return x.clamp(0, 1) if threat.clip else x


def per_sample(values: Shaped[Tensor, " batch"], like: Tensor) -> Tensor:
    """Reshape one value per sample so that it broadcasts against images."""
    return values.view(-1, *[1] * (like.ndim - 1))


def length(delta: Images, norm: Norm) -> PerSample:
    """Compute ||delta|| per sample, with sums in double precision; in `words` and `l0` the places that differ."""
    if norm == "linf":
        return delta.flatten(1).abs().amax(1).double()
    if norm in ("words", "l0"):
        return (delta != 0).any(1).flatten(1).sum(1).double()
    flat = delta.double().flatten(1)
    return torch.linalg.vector_norm(flat, dim=1) if norm == "l2" else flat.abs().sum(1)


def distance(a: Images, b: Images, norm: Norm) -> PerSample:
    """Compute ||a - b|| per sample, with sums in double precision."""
    if norm == "linf":
        return length(a - b, norm)
    return in_parts(lambda a, b: length(a.double() - b.double(), norm), a, b)


def in_parts(work: Callable[[Tensor, Tensor], Tensor], a: Images, b: Images) -> Tensor:
    """Return work(a, b), computed for a few samples at a time, so that numbers in double precision stay in the cache.

    No part has a single sample if the batch has several: torch sums that in another order where it has threads.
    """
    parts = min(-(-a.numel() // _PART), len(a) // 2)
    if parts < 2 or len(a) != len(b) or waits(a.device):
        return work(a, b)
    pairs = zip(a.tensor_split(parts), b.tensor_split(parts), strict=True)
    return torch.cat([work(*pair) for pair in pairs])


def finite(x: Images | Logits) -> Mask:
    """Tell in which rows all values are finite."""
    rows = x.flatten(1)
    return torch.isfinite(rows.amax(1)) & torch.isfinite(rows.amin(1))  # NaN is passed on; to ask each value takes long


def project(x: Images, centre: Images, threat: Threat) -> Images:
    """Project onto the ball around `centre`, then clip to the box [0, 1] if the threat model has it.

    For L-infinity this is the exact projection onto the intersection; for L2 and L1 it is the usual composition (the
    box contains the centre, so clipping never leaves the ball). For pixels and patches, the most changed ones stay.
    """
    if threat.counted:
        return nearest(x, centre, threat)
    if threat.norm == "linf":
        clipped = (x - centre).clamp_(-threat.eps, threat.eps).add_(centre)
        if threat.clip:
            return clipped.clamp_(0, 1)
        reach = (clipped - centre).abs_().double()  # in single precision the limit itself would be rounded
        outside = reach > furthest(threat.eps)  # where values are so large that rounding leaves the ball
        return torch.where(outside, torch.nextafter(clipped, centre), clipped)
    if threat.norm == "l2":
        return rescale(x, centre, threat)
    middle = centre.double()
    delta = _shorten_l1((x.double() - middle).flatten(1), threat.eps).view(x.shape)
    return into_box(_towards(centre, middle, delta), threat)


def rescale(x: Images, centre: Images, threat: Threat) -> Images:
    """Scale x - centre to length eps if it is longer, then clip to the box if the threat model has it.

    In L2 this is the projection onto the ball. In L1 and L-infinity it is not: every coordinate loses the same share.
    """
    return in_parts(lambda x, centre: _rescaled(x, centre, threat), x, centre)


def _rescaled(x: Images, centre: Images, threat: Threat) -> Images:
    middle = centre.double()
    delta = x.double() - middle
    size = distance(x, centre, "linf") if threat.norm == "linf" else length(delta, threat.norm)
    shrink = (threat.eps / size.clamp_min(1e-12)).clamp(max=1)
    return into_box(_towards(centre, middle, delta.mul_(per_sample(shrink, delta))), threat)


def _towards(centre: Images, middle: Images, delta: Images) -> Images:
    """Add a perturbation in double precision to `middle`, which is `centre`, and round towards the centre.

    With rounding to nearest, the errors of 10^5 pixels could add up and leave the ball.
    """
    moved = (middle + delta).to(centre.dtype)
    beyond = (moved.double() - middle).abs_().gt_(delta.abs()).to(centre.dtype)  # 1 or 0
    return torch.nextafter(moved, (centre - moved).mul_(beyond).add_(moved))  # where `beyond` is 0 nothing changes


def _shorten_l1(delta: Shaped[Tensor, "batch size"], eps: float) -> Shaped[Tensor, "batch size"]:
    """Shorten every coordinate by the same amount, to zero at most (Duchi et al. 2008, figure 1)."""
    size = delta.abs()
    descending = size.sort(dim=1, descending=True).values
    excess = descending.cumsum(1) - eps
    positive = (descending * torch.arange(1, size.shape[1] + 1, device=delta.device) > excess).sum(1, keepdim=True)
    shrink = (excess.gather(1, positive - 1) / positive).clamp_min(0)
    return delta.sign() * (size - shrink).clamp_min(0)


def ascent_direction(gradient: Images, norm: Norm) -> Images:
    """Return the unit step of steepest ascent for the gradient g; zero where g is zero.

    L-infinity: sign(g). L2: g / ||g||_2. L1: the sign of the largest |g_i|, at that one coordinate. Pixels and patches:
    g / max |g|, so that `project` keeps those with the largest gradient (PGD_0 of Croce & Hein 2019, arXiv:1909.05040).
    """
    if norm == "linf":
        return gradient.sign()
    if norm == "l1":
        flat = gradient.flatten(1)
        largest = flat.abs().argmax(1, keepdim=True)
        return torch.zeros_like(flat).scatter(1, largest, flat.gather(1, largest).sign()).view(gradient.shape)
    least = torch.finfo(gradient.dtype).tiny
    scaled = gradient / per_sample(gradient.flatten(1).abs().amax(1).clamp_min(least), gradient)  # its square may be 0
    if norm in COUNTED:
        return scaled
    return scaled / per_sample(scaled.flatten(1).norm(dim=1).clamp_min(least), gradient)


def uniform_in_ball(centre: Images, threat: Threat, keys: Keys) -> Images:
    """Draw one point per sample from the sample's own random stream, uniform in its ball and clipped to the box.

    L2 and L1: a Gaussian or Laplacian direction, at radius eps * U^(1/d). Pixels and patches: uniform values at random
    places.
    """
    size = math.prod(centre.shape[1:])
    if threat.counted:
        values = first_uniforms(keys, size, centre.device).view(centre.shape).to(centre)
        inside = random_places(keys, torch.zeros_like(keys), centre, threat)
        return torch.where(inside, values, centre)
    if threat.norm == "linf":
        delta = first_uniforms(keys, size, centre.device).mul_(2 * threat.eps).sub_(threat.eps)
    else:
        delta = torch.stack([_drawn(key, threat, size) for key in keys.tolist()])
    return project(centre + delta.view(centre.shape).to(centre), centre, threat)


def _drawn(key: int, threat: Threat, size: int) -> Float64[Tensor, " {size}"]:
    rng, power = generator(key), 2 if threat.norm == "l2" else 1
    direction = torch.from_numpy(rng.standard_normal(size) if power == 2 else rng.laplace(size=size))
    radius = threat.eps * rng.uniform() ** (1 / size)
    drawn: Tensor = direction * (radius / direction.norm(p=power))
    return drawn
