"""The exact projection of images onto a hyperplane within the box [0, 1], for a whole batch at once."""

from collections.abc import Sequence
from itertools import count
from typing import TypeAlias

import torch
from jaxtyping import Float64
from torch import Tensor

from robustbench_kpca.attacks.shared.rows import waits
from robustbench_kpca.protocols.threat import Norm
from robustbench_kpca.types import Images, PerSample

Flat: TypeAlias = Float64[Tensor, "batch pixel"]
Target: TypeAlias = Float64[Tensor, "batch 1"]


def to_hyperplanes(
    points: Sequence[Images], normal: Images, values: Sequence[PerSample], norm: Norm
) -> Sequence[Images]:
    """Return `to_hyperplane` of several points and one normal; all at once where to look at numbers waits."""
    if not waits(normal.device):
        return [to_hyperplane(x, normal, value, norm) for x, value in zip(points, values, strict=True)]
    count = len(points)
    return to_hyperplane(torch.cat([*points]), torch.cat([normal] * count), torch.cat([*values]), norm).chunk(count)


def to_hyperplane(x: Images, normal: Images, value: PerSample, norm: Norm) -> Images:
    """Return per sample the d of least norm with value + <normal, d> = 0 and x + d in [0, 1].

    Croce & Hein (2020), arXiv:1907.02044, section 2. Let s = sign(value), and room_i the distance that pixel i can move
    in the direction -s sign(normal_i) inside the box. The solution is d_i = -s sign(normal_i) l_i, 0 <= l_i <= room_i.
    If the hyperplane does not meet the box, x + d is the corner nearest to it. Pixels with normal_i = 0 do not move.
    Computed in double precision.
    """
    flat, pixels = normal.double().flatten(1), x.double().flatten(1)
    target, weight, sign = value.double().abs()[:, None], flat.abs(), flat.sign()
    sign *= torch.where(value < 0, -1.0, 1.0).double()[:, None]
    room = (sign * pixels).add_((1 - sign).mul_(0.5))  # pixels where the sign is 1, 1 - pixels where it is -1
    length = (_largest_first if norm == "l1" else _all_at_once if norm == "l2" else _equal_rates)(weight, room, target)
    return sign.neg_().mul_(length).view_as(x).to(x.dtype)


def _largest_first(weight: Flat, room: Flat, target: Target) -> Flat:
    """Solve for L1: move pixels by their whole room in descending order of |normal_i|, until <normal, d> = -value."""
    ordered, order = weight.sort(dim=1, descending=True, stable=True)
    ordered_room = room.gather(1, order)
    gained = (ordered * ordered_room).cumsum(1)
    remaining = (target - torch.nn.functional.pad(gained[:, :-1], (1, 0))).clamp_min(0)
    length = torch.minimum(remaining / ordered.clamp_min(torch.finfo(torch.float64).tiny), ordered_room)
    return torch.zeros_like(weight).scatter(1, order, length)


def _equal_rates(weight: Flat, room: Flat, target: Target) -> Flat:
    """Solve for L-infinity: rate_i = 1."""
    return torch.minimum(_time(room, weight, weight * room, target), room)


def _all_at_once(weight: Flat, room: Flat, target: Target) -> Flat:
    """Solve for L2: rate_i = |normal_i|. A knot is NaN, and its pixel does not move, where that and room_i are 0."""
    return torch.minimum(_time(room / weight, weight * weight, weight * room, target) * weight, room)


def _time(knots: Flat, slope: Flat, most: Flat, target: Target) -> Target:
    """Return t, from the knots room_i / rate_i, |normal_i| rate_i and |normal_i| room_i.

    The lengths are min(t rate_i, room_i), where t >= 0 solves

        sum_i |normal_i| min(t rate_i, room_i) = |value|.

    The left side is concave, increasing and linear between the knots room_i / rate_i: Newton's method from t = 0 never
    exceeds the solution and ends on the linear piece that contains it. (If there is no solution, t grows until no pixel
    can move.) Which pixels move is kept as 1 or 0: to multiply by it is much faster than `torch.where`.
    """
    t, work = torch.zeros_like(target), torch.empty_like(knots)
    every = 8 if waits(t.device) else 1  # once it is found, t stays what it is
    for iteration in count(1):
        done = torch.le(knots, t, out=work).mul_(most).sum(1, keepdim=True)
        ahead = torch.gt(knots, t, out=work).mul_(slope).sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        new = ((target - done).clamp_min(0) / ahead).clamp(max=torch.finfo(torch.float64).max)
        if iteration % every == 0 and not bool((new > t).any()):
            break
        t = torch.where(new > t, new, t)
    return t
