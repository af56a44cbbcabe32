"""The exact projection onto the intersection of an L1 ball and the box [0, 1], for a whole batch at once."""

import torch
from jaxtyping import Float64
from torch import Tensor

from robustbench_kpca.types import Images, PerSample


def nearest_in_l1(x: Images, centre: Images, radius: PerSample, *, clip: bool) -> Images:
    """Return the point of the L1 ball around `centre` and, with `clip`, of the box that is closest to x in L2.

    Croce & Hein (2021), arXiv:2103.01208, section 2. With y = x - centre, and room_i the distance that pixel i can move
    towards x_i inside the box, the solution is sign(y_i) clamp(|y_i| - t, 0, room_i), with the least t >= 0 for which
    the sum of these lengths is at most the radius. `shared.ball.project` clips after projecting: the L1 length that
    clipping removes is lost there, while here other pixels use it. Computed in double precision and rounded towards the
    centre, so that the result does not leave the ball.
    """
    middle = centre.double().flatten(1)
    delta = x.double().flatten(1) - middle
    size = delta.abs()
    room = torch.where(delta > 0, 1 - middle, middle) if clip else size
    limit = radius.double()[:, None] * (1 - 1e-12)
    length = torch.minimum((size - _excess(size, room, limit)).clamp_min(0), room)
    moved = (middle + delta.sign() * length).view(centre.shape).to(centre.dtype)
    beyond = (moved.double() - centre.double()).abs() > length.view(centre.shape)
    return torch.where(beyond, torch.nextafter(moved, centre), moved)


def _excess(
    size: Float64[Tensor, "batch pixel"], room: Float64[Tensor, "batch pixel"], limit: Float64[Tensor, "batch 1"]
) -> Float64[Tensor, "batch 1"]:
    """Return the least t >= 0 with sum_i clamp(size_i - t, 0, room_i) <= limit.

    As t decreases, pixel i begins to move at the knot size_i and reaches the end of its room at size_i - room_i.
    Between knots the sum is linear; the magnitude of its slope is the number of moving pixels.
    """
    knots, order = torch.cat([size, size - room], dim=1).sort(dim=1, descending=True)
    moving = torch.where(order < size.shape[1], 1.0, -1.0).double().cumsum(1)
    gained = (moving[:, :-1] * (knots[:, :-1] - knots[:, 1:])).cumsum(1)
    reached = torch.nn.functional.pad(gained, (1, 0))  # the sum at each knot
    last = ((reached <= limit) & (knots >= 0)).sum(
        1, keepdim=True
    ) - 1  # the sum never decreases, so these knots come first
    last = last.clamp_min(0)
    spare = limit - reached.gather(1, last)
    return (knots.gather(1, last) - spare / moving.gather(1, last).clamp_min(1)).clamp_min(0)
