"""Square Attack: random search; each query changes one square window, and changes that lower the margin are kept.

Andriushchenko, Croce, Flammarion & Hein (2020), "Square Attack: a query-efficient black-box adversarial attack via
random search", arXiv:1912.00049, algorithms 1 to 3; in the variant of AutoAttack: Croce & Hein (2020),
arXiv:2003.01690, for L1 Croce & Hein (2021), arXiv:2103.01208.
"""

from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._l1 import nearest_in_l1
from robustbench_kpca.attacks.shared.ball import project, require_box
from robustbench_kpca.attacks.shared.draws import uniforms
from robustbench_kpca.attacks.shared.losses import margin
from robustbench_kpca.attacks.shared.rows import choose, constant
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels, Mask, Query, State

_HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # queries, also for budgets other than 10,000
_TINY = 1e-12
_ORDER = {"l2": 2, "l1": 1}
_POSITIONS, _ROTATED, _FIXED = slice(0, 4), 4, 5  # indices into a query's uniform draws; one sign per channel follows


@dataclass(frozen=True, config=FORBID)
class Square:
    """x_{t+1} is x_t with one window changed, if that lowers z_y - max_{k != y} z_k; else x_t.

    The window is a square of side sqrt(p h w), rounded, where p is `p_init`, halved after 10, 50, 200, 500, 1000,
    2000, 4000, ... queries. Its corner is uniform in {0, ..., h - side - 1} x {0, ..., w - side - 1}, as in the
    authors' program and AutoAttack: the last row and column are reached only by the initial pattern.

    L-infinity: the initial pattern is vertical stripes of +-eps, one sign per column and channel; a window adds +-2
    eps, one sign per channel, and the sum is clipped to +-eps. L2: the initial pattern is a tiling of bumps. The window
    has an odd side of at least 3; a bump with one sign per channel is added to its perturbation. The window also
    receives the norm budget of a second window, which is set to zero, and the budget left over by clipping to the box.
    L1: the same with steeper bumps and L1 lengths, where the window receives that budget once per channel; too long a
    perturbation is projected onto the intersection of ball and box, not scaled and clipped.

    A sample that is never misclassified costs `queries` + 1 forward passes per restart (1 for the initial pattern), as
    in AutoAttack. Unlike AutoAttack, every sample has its own windows and signs.
    """

    version: ClassVar[int] = 1
    most_passes: ClassVar[tuple[str, str]] = ("queries + 1", "0")
    queries: Annotated[int, Field(ge=1, strict=True)]
    p_init: Annotated[float, Field(gt=0, le=1)]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Propose the initial pattern."""
        require_box(threat, "square")
        if threat.norm == "linf":
            first = project(x + threat.eps * _stripes(x, keys), x, threat)
        else:
            first = _into_ball(_tiles(x, keys, _ORDER[threat.norm]), x, threat)
        return {
            "x": first,
            "clean": x,
            "y": y,
            "key": keys,
            "best": x,
            "loss": torch.full_like(x[:, 0, 0, 0], torch.inf),
            "query": torch.zeros_like(keys),
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Query the initial pattern or a change of the best image; keep it if its margin is the lowest so far.

        `x` stays the initial pattern until the last query; then it is the change that comes next.
        """
        count = state["query"]
        x = choose(count > 0, self._change(state, threat), state["x"])
        loss = margin(query.logits(x), state["y"]).to(state["loss"].dtype)
        better, finished = loss < state["loss"], count + 1 >= self.queries
        best, loss = choose(better, x, state["best"]), torch.where(better, loss, state["loss"])
        state = state | {"best": best, "loss": loss, "query": count + 1, "finished": finished}
        if not bool(finished.any()):  # another proposal would cost more than waiting
            return state
        return state | {"x": choose(finished, self._change(state, threat), state["x"])}

    def ahead(self, state: State, threat: Threat, queries: Labels) -> State:  # noqa: ARG002
        """Count queries that were all rejected."""
        return state | {"query": state["query"] + queries}

    def kept(self, before: State, after: State) -> Mask:
        """Tell whether the margin became lower."""
        return after["loss"] < before["loss"]

    def _change(self, state: State, threat: Threat) -> Images:
        """Propose a change of the best image after `query` queries; it depends on nothing else that was shown."""
        best, clean, count = state["best"], state["clean"], state["query"]
        draws = uniforms(state["key"], count, _FIXED + best.shape[1])
        change = _repaint if threat.norm == "linf" else _move_budget
        return change(best, clean, self._side((count - 1).clamp_min(0), best, threat), draws, threat)

    def _side(self, count: Labels, x: Images, threat: Threat) -> Labels:
        """Return the side of the next window, in pixels."""
        after, sides = _sides(self.p_init, x.shape[2], x.shape[3], threat.norm == "linf", count.device)
        return sides[torch.bucketize(count, after)]


@lru_cache(maxsize=16)
def _sides(
    p: float, height: int, width: int, linf: bool, device: torch.device
) -> tuple[Int64[Tensor, " halving"], Int64[Tensor, " side"]]:
    """Return the queries after which p is halved, and the sides of the windows before, between and after these."""
    after = constant(_HALVED_AFTER, device)
    halvings = torch.arange(len(after) + 1, device=device).double()
    side = (p * 0.5**halvings * height * width).sqrt().round().long()
    if not linf:
        side = side.clamp_min(3)
        side = side + (side + 1) % 2
    return after, side.clamp(1, min(height, width))


def _sign(draws: Tensor, like: Images) -> Tensor:
    return torch.where(draws < 0.5, -1.0, 1.0).to(like.dtype)


def _stripes(x: Images, keys: Keys) -> Images:
    """Return one sign per channel and column."""
    count, channels, _, width = x.shape
    draws = uniforms(keys, torch.zeros_like(keys), channels * width)
    return _sign(draws, x).view(count, channels, 1, width).expand_as(x)


def _tiles(x: Images, keys: Keys, order: int) -> Images:
    """Return a tiling of bumps, five per column, each rotated by 0 or 90 degrees, with one sign per channel."""
    count, channels, height, width = x.shape
    side = max(height // 5, 1)
    first = max((height - 5 * side) // 2, 0)
    corners = [
        (first + row * side, first + column * side) for row in range(height // side) for column in range(width // side)
    ]
    draws = uniforms(keys, torch.zeros_like(keys), len(corners) * (1 + channels)).view(count, len(corners), -1)
    rotated = (draws[:, :, 0] > 0.5).T.tolist()
    pattern = torch.zeros_like(x)
    for tile, (top, left) in enumerate(corners):
        bumps = [_placed_bump(side, flip, order, x.device, x.dtype) for flip in rotated[tile]]
        painted = torch.stack(bumps)[:, None] * _sign(draws[:, tile, 1:], x)[:, :, None, None]
        place = pattern[:, :, top : top + side, left : left + side]  # cut off at the border
        place.copy_(painted[:, :, : place.shape[2], : place.shape[3]])
    return pattern


def _into_ball(delta: Images, clean: Images, threat: Threat) -> Images:
    """Return, for L2, clean + delta scaled to length eps and clipped; for L1, its projection onto ball and box."""
    if threat.norm == "l2":
        return project(clean + delta / (_norm(delta, (1, 2, 3), 2) + _TINY) * threat.eps, clean, threat)
    radius = torch.full_like(delta[:, 0, 0, 0], threat.eps, dtype=torch.float64)
    return nearest_in_l1(clean + delta, clean, radius, clip=True)


def _repaint(best: Images, clean: Images, side: Labels, draws: Float[Tensor, "batch draws"], threat: Threat) -> Images:
    """Propose for L-infinity: +-2 eps in one window."""
    window = _window(_corners(side, draws, best)[:, :2], side, best)
    change = 2 * threat.eps * _sign(draws[:, _FIXED:], best)[:, :, None, None]
    return project(best + change * window, clean, threat)


def _move_budget(
    best: Images, clean: Images, side: Labels, draws: Float[Tensor, "batch draws"], threat: Threat
) -> Images:
    """Propose for L2 and L1: the second window's norm budget and the unused part of eps go to the first window."""
    order, axes = _ORDER[threat.norm], (2, 3)
    delta = best - clean
    corners = _corners(side, draws, best)
    target, source = _window(corners[:, :2], side, best), _window(corners[:, 2:], side, best)
    field = torch.zeros_like(best[:, :1])
    windows = torch.cat([corners[:, :2], side[:, None], (draws[:, _ROTATED, None] > 0.5).long()], 1).tolist()
    for row, (top, left, size, flip) in enumerate(windows):
        pattern = _placed_bump(size, flip, order, best.device, best.dtype)
        field[row, 0, top : top + len(pattern), left : left + len(pattern)] = pattern
    inside = delta * target
    new = field * _sign(draws[:, _FIXED:], best)[:, :, None, None] + inside / (_norm(inside, axes, order) + _TINY)
    spare = (threat.eps**order - _norm(delta, (1, 2, 3), order) ** order).clamp_min(0) / best.shape[1]
    budget = (spare + _norm(delta * torch.maximum(target, source), axes, order) ** order) ** (1 / order)
    if threat.norm == "l1":
        budget = budget * best.shape[1]
    new = new / (_norm(new, axes, order) + _TINY) * budget
    return _into_ball(torch.where(target > 0, new, delta * (1 - source)), clean, threat)


def _norm(x: Tensor, axes: tuple[int, ...], order: int) -> Tensor:
    return x.abs().sum(axes, keepdim=True) if order == 1 else x.square().sum(axes, keepdim=True).sqrt()


def _corners(side: Labels, draws: Float[Tensor, "batch draws"], like: Images) -> Int64[Tensor, "batch 4"]:
    """Return row and column of the first window, and of the second."""
    extent = constant(tuple(like.shape[2:]) * 2, side.device)
    return (draws[:, _POSITIONS] * (extent - side[:, None])).long()


def _window(corner: Int64[Tensor, "batch 2"], side: Labels, like: Images) -> Float[Tensor, "batch 1 height width"]:
    """Return one inside the window, zero outside."""
    first, end = corner[:, :, None], (corner + side[:, None])[:, :, None]
    at = torch.arange(max(like.shape[2:]), device=side.device)
    inside = ((at >= first) & (at < end)).to(like.dtype)
    return (inside[:, 0, : like.shape[2], None] * inside[:, 1, None, : like.shape[3]])[:, None]


@lru_cache(maxsize=256)
def _placed_bump(side: int, rotated: int, order: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return a bump on a device, rotated by 90 degrees if `rotated`; do not write into it."""
    with torch.inference_mode(mode=False):
        pattern = torch.from_numpy(bump(side, order)).to(device, dtype)
        return pattern.T if rotated else pattern


@lru_cache(maxsize=256)
def bump(side: int, order: int) -> NDArray[np.float64]:
    """Return a bump of length 1 in L1 or L2: a positive peak above a negative one, both decreasing outwards."""
    half = side // 2
    both: NDArray[np.float64] = np.concatenate([_peak(half, side, order), -_peak(side - half, side, order)])
    return both / float(np.linalg.norm(both.ravel(), order))


def _peak(height: int, width: int, order: int) -> NDArray[np.float64]:
    """Return sum_{k >= D} (k + 1)^-2 (L1: ^-4) at Chebyshev distance D from the centre, scaled to length 1."""
    if height == 0:
        return np.zeros((0, width))
    centre_row, centre_column = height // 2, width // 2
    tail = np.cumsum(np.arange(max(centre_row, centre_column) + 1, 0, -1) ** (-4.0 / order))[::-1]
    rows, columns = abs(np.arange(height) - centre_row), abs(np.arange(width) - centre_column)
    peak: NDArray[np.float64] = tail[np.maximum(rows[:, None], columns)]
    return peak / float(np.linalg.norm(peak.ravel(), order))


ATTACK = Square
