"""The exact projection of images onto a hyperplane within the box [0, 1], for a whole batch at once."""

from typing import TypeAlias

import torch
from jaxtyping import Float64
from torch import Tensor

from robustbench_kpca.protocols.threat import Norm
from robustbench_kpca.types import Images, PerSample

Flat: TypeAlias = Float64[Tensor, "batch pixel"]
Target: TypeAlias = Float64[Tensor, "batch 1"]


def to_hyperplane(x: Images, normal: Images, value: PerSample, norm: Norm) -> Images:
    """Return per sample the d of least norm with value + <normal, d> = 0 and x + d in [0, 1].

    Croce & Hein (2020), arXiv:1907.02044, section 2. Let s = sign(value), and room_i the distance that pixel i can move
    in the direction -s sign(normal_i) inside the box. The solution is d_i = -s sign(normal_i) l_i, 0 <= l_i <= room_i.
    If the hyperplane does not meet the box, x + d is the corner nearest to it. Pixels with normal_i = 0 do not move.
    Computed in double precision.
    """
    flat = normal.double().flatten(1) * torch.where(value < 0, -1.0, 1.0).double()[:, None]
    target, pixels, weight = value.double().abs()[:, None], x.double().flatten(1), flat.abs()
    room = torch.where(flat > 0, pixels, 1 - pixels) * (weight > 0)
    if norm == "l1":
        length = _largest_first(weight, room, target)
    else:
        length = _all_at_once(weight, room, target, torch.ones_like(weight) if norm == "linf" else weight)
    return (-flat.sign() * length).view_as(x).to(x.dtype)


def _largest_first(weight: Flat, room: Flat, target: Target) -> Flat:
    """Solve for L1: move pixels by their whole room in descending order of |normal_i|, until <normal, d> = -value."""
    ordered, order = weight.sort(dim=1, descending=True, stable=True)
    ordered_room = room.gather(1, order)
    gained = (ordered * ordered_room).cumsum(1)
    left = (target - torch.nn.functional.pad(gained[:, :-1], (1, 0))).clamp_min(0)
    length = torch.minimum(left / ordered.clamp_min(torch.finfo(torch.float64).tiny), ordered_room)
    return torch.zeros_like(weight).scatter(1, order, length)


def _all_at_once(weight: Flat, room: Flat, target: Target, rate: Flat) -> Flat:
    """Solve for L-infinity (rate_i = 1) and L2 (rate_i = |normal_i|).

    The lengths are min(t rate_i, room_i), where t >= 0 solves

        sum_i |normal_i| min(t rate_i, room_i) = |value|.

    The left side is concave, increasing and linear between the knots room_i / rate_i: Newton's method from t = 0 never
    exceeds the solution and ends on the linear piece that contains it. (If there is no solution, t grows until no pixel
    can move.)
    """
    knots, slope, most = room / rate, weight * rate, weight * room  # a knot is NaN where normal_i = 0 in L2
    t = torch.zeros_like(target)
    while True:
        moving = knots > t
        left = (target - torch.where(moving, 0, most).sum(1, keepdim=True)).clamp_min(0)
        ahead = torch.where(moving, slope, 0).sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        new = (left / ahead).clamp(max=torch.finfo(torch.float64).max)
        if not bool((new > t).any()):
            return torch.minimum(t * rate, room)
        t = torch.where(new > t, new, t)
