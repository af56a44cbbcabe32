"""Square Attack: random search that repaints one square window a query and keeps what lowers the margin.

Andriushchenko, Croce, Flammarion & Hein (2020), "Square Attack: a query-efficient black-box adversarial attack via
random search", arXiv:1912.00049, algorithms 1 to 3; in the variant of AutoAttack (Croce & Hein 2020, arXiv:2003.01690).
"""

from functools import lru_cache
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from robustbench_kpca.attacks._ball import per_sample, project, require_box, require_norm
from robustbench_kpca.attacks._draws import uniforms
from robustbench_kpca.attacks._losses import margin
from robustbench_kpca.strict import FORBID
from robustbench_kpca.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels, Query, State

_HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # queries; for budgets of 10,000, never rescaled
_TINY = 1e-12
_POSITIONS, _TURNED, _FIXED = slice(0, 4), 4, 5  # of a query's uniform draws; one sign per channel follows


@dataclass(frozen=True, config=FORBID)
class Square:
    """x_{t+1} is x_t with one window changed, if that lowers z_y - max_{k != y} z_k; else x_t.

    The window is a square of side sqrt(p h w), rounded, where p is `p_init`, halved after 10, 50, 200, 500, 1000,
    2000, 4000, ... queries. Its corner is uniform in {0, ..., h - side - 1} x {0, ..., w - side - 1}, as in the
    authors' program and AutoAttack: the last row and column are reached only by the initial pattern.

    L-infinity: from vertical stripes of +-eps, one sign per column and channel; a window adds +-2 eps, one sign per
    channel, and the sum is clipped to +-eps. L2: from a tiling by bumps; a window of odd side, 3 at least, is
    repainted with itself plus a bump of one sign per channel, and takes over the budget of a second window, which is
    emptied, and what the box has cut off.

    A sample that is never broken costs `queries` + 1 forward passes a restart (1 for the initial pattern), as in
    AutoAttack. Unlike there, every sample has windows and signs of its own.
    """

    queries: Annotated[int, Field(ge=1, strict=True)]
    p_init: Annotated[float, Field(gt=0, le=1)]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Propose the initial pattern.

        Raises:
            BadInputError: the norm is neither L-infinity nor L2.

        """
        require_norm(threat, "square", "linf", "l2")
        require_box(threat, "square")
        first = _stripes(x, keys) if threat.norm == "linf" else _tiles(x, keys)
        return {
            "x": project(x + threat.eps * first, x, threat),
            "clean": x,
            "y": y,
            "key": keys,
            "best": x,
            "loss": torch.full_like(x[:, 0, 0, 0], torch.inf),
            "query": torch.zeros_like(keys),
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Ask about the proposal, keep it if it is better than the best, and propose a change of the best."""
        x, clean, count = state["x"], state["clean"], state["query"]
        loss = (threat.sign * margin(query.logits(x), state["y"])).to(state["loss"].dtype)
        better = loss < state["loss"]
        best = torch.where(per_sample(better, x), x, state["best"])
        draws = uniforms(state["key"], count + 1, _FIXED + x.shape[1])
        change = _repaint if threat.norm == "linf" else _move_mass
        return state | {
            "x": change(best, clean, self._side(count, x, threat), draws, threat),
            "best": best,
            "loss": torch.where(better, loss, state["loss"]),
            "query": count + 1,
            "finished": count + 1 >= self.queries,
        }

    def _side(self, count: Labels, x: Images, threat: Threat) -> Labels:
        """Return the side of the next window."""
        halvings = torch.bucketize(count, torch.tensor(_HALVED_AFTER, device=count.device))
        height, width = x.shape[2:]
        side = (self.p_init * 0.5 ** halvings.double() * height * width).sqrt().round().long()
        if threat.norm == "l2":
            side = side.clamp_min(3)
            side = side + (side + 1) % 2
        return side.clamp(1, min(height, width))


def _sign(draws: Tensor, like: Images) -> Tensor:
    return torch.where(draws < 0.5, -1.0, 1.0).to(like.dtype)


def _stripes(x: Images, keys: Keys) -> Images:
    """Return one sign per channel and column."""
    count, channels, _, width = x.shape
    draws = uniforms(keys, torch.zeros_like(keys), channels * width)
    return _sign(draws, x).view(count, channels, 1, width).expand_as(x)


def _tiles(x: Images, keys: Keys) -> Images:
    """Return a field of bumps of length 1: five to a column, each turned or not, of one sign per channel."""
    count, channels, height, width = x.shape
    side = max(height // 5, 1)
    first = max((height - 5 * side) // 2, 0)
    corners = [
        (first + row * side, first + column * side) for row in range(height // side) for column in range(width // side)
    ]
    draws = uniforms(keys, torch.zeros_like(keys), len(corners) * (1 + channels)).view(count, len(corners), -1)
    pattern = torch.zeros_like(x)
    for tile, (top, left) in enumerate(corners):
        bumps = _bumps(torch.full_like(keys, side), draws[:, tile, 0], x)
        painted = torch.stack(bumps)[:, None] * _sign(draws[:, tile, 1:], x)[:, :, None, None]
        place = pattern[:, :, top : top + side, left : left + side]  # cut off at the border
        place.copy_(painted[:, :, : place.shape[2], : place.shape[3]])
    return pattern / (_norm(pattern, (1, 2, 3)) + _TINY)


def _repaint(best: Images, clean: Images, side: Labels, draws: Float[Tensor, "batch draws"], threat: Threat) -> Images:
    """Propose for L-infinity: +-2 eps in one window."""
    window = _window(_corners(side, draws, best)[:, :2], side, best)
    change = 2 * threat.eps * _sign(draws[:, _FIXED:], best)[:, :, None, None]
    return project(best + change * window, clean, threat)


def _move_mass(
    best: Images, clean: Images, side: Labels, draws: Float[Tensor, "batch draws"], threat: Threat
) -> Images:
    """Propose for L2: the mass of the second window, and what is left of eps, goes into the first."""
    delta = best - clean
    corners = _corners(side, draws, best)
    target, source = _window(corners[:, :2], side, best), _window(corners[:, 2:], side, best)
    bumps = _bumps(side, draws[:, _TURNED], best)
    field = torch.zeros_like(best[:, :1])
    for row, ((top, left), pattern) in enumerate(zip(corners[:, :2].tolist(), bumps, strict=True)):
        field[row, 0, top : top + len(pattern), left : left + len(pattern)] = pattern
    inside = delta * target
    new = field * _sign(draws[:, _FIXED:], best)[:, :, None, None] + inside / (_norm(inside, (2, 3)) + _TINY)
    spare = (threat.eps**2 - _norm(delta, (1, 2, 3)) ** 2).clamp_min(0) / best.shape[1]
    budget = (spare + _norm(delta * torch.maximum(target, source), (2, 3)) ** 2).sqrt()
    new = new / (_norm(new, (2, 3)) + _TINY) * budget
    delta = torch.where(target > 0, new, delta * (1 - source))
    return (clean + delta / (_norm(delta, (1, 2, 3)) + _TINY) * threat.eps).clamp(0, 1)


def _norm(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return x.square().sum(axes, keepdim=True).sqrt()


def _corners(side: Labels, draws: Float[Tensor, "batch draws"], like: Images) -> Int64[Tensor, "batch 4"]:
    """Return row and column of the first window, and of the second."""
    extent = torch.tensor(like.shape[2:] * 2, device=side.device)
    return (draws[:, _POSITIONS] * (extent - side[:, None])).long()


def _window(corner: Int64[Tensor, "batch 2"], side: Labels, like: Images) -> Float[Tensor, "batch 1 height width"]:
    """Return one inside the window, zero outside."""
    first, end = corner[:, :, None], (corner + side[:, None])[:, :, None]
    at = torch.arange(max(like.shape[2:]), device=side.device)
    inside = ((at >= first) & (at < end)).to(like.dtype)
    return (inside[:, 0, : like.shape[2], None] * inside[:, 1, None, : like.shape[3]])[:, None]


def _bumps(side: Labels, turned: Float[Tensor, " batch"], like: Images) -> list[Tensor]:
    """Return a bump of every sample's side, turned by 90 degrees where the draw says so."""
    known = {size: torch.from_numpy(bump(size)).to(like) for size in set(side.tolist())}
    pairs = zip(side.tolist(), (turned > 0.5).tolist(), strict=True)
    return [known[size].T if flip else known[size] for size, flip in pairs]


@lru_cache(maxsize=256)
def bump(side: int) -> NDArray[np.float64]:
    """Return a square of length 1: a positive peak above a negative one, both falling off from their centres."""
    half = side // 2
    both: NDArray[np.float64] = np.concatenate([_peak(half, side), -_peak(side - half, side)])
    return both / float(np.linalg.norm(both))


def _peak(height: int, width: int) -> NDArray[np.float64]:
    """Return sum_{k >= D} 1 / (k + 1)^2 at Chebyshev distance D from the centre, scaled to length 1."""
    if height == 0:
        return np.zeros((0, width))
    centre_row, centre_column = height // 2, width // 2
    tail = np.cumsum(1 / np.arange(max(centre_row, centre_column) + 1, 0, -1) ** 2.0)[::-1]
    rows, columns = abs(np.arange(height) - centre_row), abs(np.arange(width) - centre_column)
    peak: NDArray[np.float64] = tail[np.maximum(rows[:, None], columns)]
    return peak / float(np.linalg.norm(peak))


ATTACK = Square
