"""Geometry of a few squares of free values: where they may lie, which are worth most, and which images they explain.

A pixel is a square of side 1, so the L0 ball of a number of pixels is one of these sets.
"""

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels, Mask

_HOST = torch.device("cpu")
Gain = Float[Tensor, "batch height width"]
Places = Bool[Tensor, "batch row column"]
"""One value for every upper left corner: (height - side + 1) x (width - side + 1)."""
Corners = Int64[Tensor, "batch square"]
"""The number of every square's upper left corner, in the order of reading."""
Values = Float[Tensor, "batch square channel side side"]
Inside = Bool[Tensor, "batch 1 height width"]
"""True for the pixels of the squares."""


@lru_cache(maxsize=16)
def allowed_corners(
    threat: Threat, height: int, width: int, device: torch.device = _HOST
) -> Bool[Tensor, "row column"]:
    """Tell at which upper left corners a square may lie; made once a device, so do not write into it.

    Raises:
        BadInputError: a square does not fit into the image, or fewer of them fit than may change.
    """
    side, size = threat.side, f"images of {height} x {width} pixels"
    if side > min(height, width):
        raise BadInputError(f"{threat} for {size}", expected="patches that fit into the image")
    allowed = torch.zeros(height - side + 1, width - side + 1, dtype=torch.bool)
    step = 1 if threat.corners == "anywhere" else side
    allowed[::step, ::step] = True
    if threat.count > int(allowed.sum()):
        raise BadInputError(f"{threat} for {size}", expected=f"at most {int(allowed.sum())}, for which there is room")
    return allowed.to(device)


def most_gain(gain: Gain, threat: Threat) -> Inside:
    """Return the pixels of the squares that hold most of `gain`, which is not negative.

    Where squares cannot overlap these are the best there are; where they may lie anywhere, each is the best beside the
    ones before.
    """
    allowed = allowed_corners(threat, *gain.shape[1:], gain.device)
    if threat.corners != "anywhere":
        return _painted(_largest(_sums(gain, threat.side), allowed, threat.count), threat.side)
    inside = torch.zeros_like(gain, dtype=torch.bool)[:, None]
    for _ in range(threat.count):
        uncovered = gain.masked_fill(inside[:, 0], 0)
        inside = inside | _painted(_largest(_sums(uncovered, threat.side), allowed, 1), threat.side)
    return inside


def random_corners(keys: Keys, runs: Labels, like: Images, threat: Threat) -> Corners:
    """Return different corners at random, the same for the same key and run."""
    choices = allowed_corners(threat, *like.shape[2:]).flatten().nonzero()[:, 0].numpy()
    draws = [
        generator(sample_key(key, "places", str(run))).choice(choices, threat.count, replace=False)
        for key, run in zip(keys.tolist(), runs.tolist(), strict=True)
    ]
    return torch.from_numpy(np.stack(draws)).to(like.device)


def random_places(keys: Keys, runs: Labels, like: Images, threat: Threat) -> Inside:
    """Return the pixels of squares at random places, the same for the same key and run."""
    allowed = allowed_corners(threat, *like.shape[2:])
    flat = torch.zeros(len(keys), allowed.numel(), dtype=torch.bool, device=like.device)
    places = flat.scatter(1, random_corners(keys, runs, like, threat), True)
    return _painted(places.view(len(keys), *allowed.shape), threat.side)


def at_corners(x: Images, corners: Corners, values: Values) -> Images:
    """Return images with squares of these values at these corners; where squares overlap, the later one counts."""
    side, width = values.shape[-1], x.shape[3]
    row, column = corners // (width - side + 1), corners % (width - side + 1)
    step = torch.arange(side, device=x.device)
    pixels = ((row[..., None] + step)[..., None] * width + (column[..., None] + step)[..., None, :]).flatten(2)
    new = x.flatten(2).clone()
    at_once = [slice(None)] if side == 1 else [slice(number, number + 1) for number in range(corners.shape[1])]
    for squares in at_once:  # pixels never overlap
        index = pixels[:, squares].flatten(1)[:, None].expand(-1, x.shape[1], -1)
        new = new.scatter(2, index, values[:, squares].transpose(1, 2).flatten(2))
    return new.view(x.shape)


def nearest(x: Images, clean: Images, threat: Threat) -> Images:
    """Return x in the squares where it gains most of the distance to `clean`, clipped to [0, 1]; else `clean`.

    Where squares cannot overlap this is the Euclidean projection.
    """
    boxed = x.clamp(0, 1)
    gain = ((x - clean).square() - (x - boxed).square()).sum(1)
    return torch.where(most_gain(gain.clamp_min(0), threat), boxed, clean)


def beyond(x: Images, clean: Images, threat: Threat) -> Mask:
    """Tell which images differ from the clean one in more than the squares allowed."""
    changed = (x != clean).any(1)
    if threat.norm == "l0":
        return changed.flatten(1).sum(1) > threat.count
    allowed = allowed_corners(threat, *changed.shape[1:], x.device)
    if threat.corners == "anywhere":
        covered = [_cover(changed_pixels, threat.side, threat.count) for changed_pixels in changed.cpu().numpy()]
        return ~torch.tensor(covered, device=x.device)
    used = F.max_pool2d(changed[:, None].to(torch.float32), threat.side, 1)[:, 0] > 0
    outside = changed & ~_painted(allowed[None], threat.side)[0]
    return ((used & allowed).flatten(1).sum(1) > threat.count) | outside.flatten(1).any(1)


def _sums(gain: Gain, side: int) -> Float[Tensor, "batch row column"]:
    return F.avg_pool2d(gain[:, None], side, 1, divisor_override=1)[:, 0]


def _largest(sums: Float[Tensor, "batch row column"], allowed: Bool[Tensor, "row column"], count: int) -> Places:
    flat = sums.masked_fill(~allowed, -1).flatten(1)
    chosen: Int64[Tensor, "batch place"] = flat.argsort(dim=1, descending=True, stable=True)[:, :count]
    return torch.zeros_like(flat, dtype=torch.bool).scatter(1, chosen, True).view(sums.shape)


def _painted(places: Places, side: int) -> Inside:
    """Return the pixels of squares from their corners."""
    padded = F.pad(places[:, None].to(torch.float32), (side - 1,) * 4)
    return F.max_pool2d(padded, side, 1) > 0


def _cover(changed: NDArray[np.bool_], side: int, count: int) -> bool:
    """Tell whether `count` squares, which may overlap and must lie in the image, can hold all changed pixels.

    The square of the topmost changed pixel may as well begin in its row, or as low as it fits.
    """
    height, width = changed.shape

    def holds(points: NDArray[np.int64], squares: int) -> bool:
        if not len(points):
            return True
        if len(points) > squares * side * side:
            return False
        row, column = points[0]  # points are in the order of reading
        top = min(row, height - side)
        low = points[:, 0] < top + side
        begins = range(max(0, column - side + 1), min(column, width - side) + 1)
        rest = [points[~(low & (points[:, 1] >= at) & (points[:, 1] < at + side))] for at in begins]
        return any(holds(points, squares - 1) for points in sorted(rest, key=len))

    return holds(np.argwhere(changed), count)
