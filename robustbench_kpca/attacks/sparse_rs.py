"""Sparse-RS: random search over places and values of a few pixels or patches, without gradients.

Croce, Andriushchenko, Singh, Flammarion & Hein (2022), "Sparse-RS: a Versatile Framework for Query-Efficient Sparse
Black-Box Adversarial Attacks", arXiv:2006.12834, algorithms 1 to 3; constants as in the authors' program.
"""

from typing import Annotated, ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks.shared.ball import require_norm
from robustbench_kpca.attacks.shared.draws import uniforms
from robustbench_kpca.attacks.shared.losses import margin
from robustbench_kpca.attacks.shared.patches import allowed_corners, at_corners, random_corners
from robustbench_kpca.attacks.shared.rows import choose, constant, none
from robustbench_kpca.protocols.scenario import Count
from robustbench_kpca.protocols.threat import COUNTED, Norm, Threat
from robustbench_kpca.types import Images, Keys, Labels, Mask, Query, State

_AFTER = (0, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # queries of 10,000; other budgets are rescaled
_DIVISORS = (1, 2, 4, 5, 6, 8, 10, 12, 15, 20)
_MOVED_EVERY = 4  # queries
_FURTHEST = 0.75  # share of the image that a patch moves at most, at the beginning
_FIXED = 6  # uniform draws of a query of patches; one per channel follows

Draws = Float[Tensor, "batch draws"]


@dataclass(frozen=True, config=FORBID)
class SparseRS:
    """x_{t+1} is x_t with some places or values changed, if that lowers z_y - max_{k != y} z_k; else x_t.

    alpha_t is `alpha_init` divided by 1, 2, 4, 5, 6, 8, 10, 12, 15 and 20, where a budget of 10,000 queries has done 0,
    50, 200, 500, 1,000, 2,000, 4,000, 6,000 and 8,000.

    Pixels (L0): eps of them at random have colours in {0, 1}^channels. A query gives max(1, floor(alpha_t eps)) of them
    their clean values back, and as many others a random colour.

    Patches: each begins with one random colour at a random place. A query changes one of them. Every fourth moves it:
    on a grid or among given places to a random free one, else by up to 0.75 (1 - t / queries) of the image's side. The
    others add -1 or +1, one sign a channel, to a square of it with side sqrt(alpha_t) of its own; where that is a
    single pixel, they flip one channel of it. Unlike in the authors' program, the last row and column can be drawn at
    first, and every sample has its own draws.

    A sample that is never misclassified costs `queries` + 1 forward passes per restart.
    """

    version: ClassVar[int] = 1
    norms: ClassVar[tuple[Norm, ...]] = COUNTED
    most_passes: ClassVar[tuple[str, str]] = ("queries + 1", "0")
    queries: Count
    alpha_init: Annotated[float, Field(gt=0, le=1)]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Draw the first places and colours."""
        require_norm(threat, "sparse_rs", *self.norms)
        corners = random_corners(keys, torch.zeros_like(keys), x, threat)
        state = {
            "clean": x,
            "y": y,
            "key": keys,
            "corners": corners,
            "best_corners": corners,
            "loss": torch.full_like(x[:, 0, 0, 0], torch.inf),
            "query": torch.zeros_like(keys),
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }
        draws = uniforms(keys, state["query"], corners.shape[1] * x.shape[1])
        colours = _signs(draws, x).view(len(x), corners.shape[1], x.shape[1], 1, 1).clamp_min(0)
        values = colours.expand(-1, -1, -1, threat.side, threat.side)
        return state | {"values": values, "best_values": values, "x": at_corners(x, corners, values)}

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Query the image and keep it if its margin is the lowest so far; then propose a change of the best one."""
        loss = margin(query.logits(state["x"]), state["y"]).to(state["loss"].dtype)
        better, count = loss < state["loss"], state["query"] + 1
        best = {f"best_{name}": choose(better, state[name], state[f"best_{name}"]) for name in ("corners", "values")}
        state = state | best | {"loss": torch.where(better, loss, state["loss"]), "query": count}
        return state | self._change(state, threat) | {"finished": count >= self.queries}

    def ahead(self, state: State, threat: Threat, queries: Labels) -> State:
        """Count queries that were all rejected."""
        if none(queries > 0):
            return state
        later = state | {"query": state["query"] + queries}
        changed = self._change(later, threat)
        return later | {name: choose(queries > 0, values, state[name]) for name, values in changed.items()}

    def kept(self, before: State, after: State) -> Mask:
        """Tell whether the margin became lower."""
        return after["loss"] < before["loss"]

    def _change(self, state: State, threat: Threat) -> State:
        """Return the places, the values and the image of the next query; they depend on the best ones alone."""
        change = self._other_pixels if threat.norm == "l0" else self._other_patch
        corners, values = change(state, threat)
        return {"corners": corners, "values": values, "x": at_corners(state["clean"], corners, values)}

    def _alpha(self, query: Labels) -> Float[Tensor, " batch"]:
        after = constant(_AFTER, query.device)
        stage = torch.bucketize((query.double() / self.queries * 10_000).long(), after)
        return self.alpha_init / constant(_DIVISORS, query.device, torch.float64)[stage]

    def _other_pixels(self, state: State, threat: Threat) -> tuple[Tensor, Tensor]:
        clean, corners, values = state["clean"], state["best_corners"], state["best_values"]
        (batch, channels, *_), count, pixels = clean.shape, threat.count, clean[0, 0].numel()
        draws = uniforms(state["key"], state["query"], count + pixels + count * channels)
        out = draws[:, :count].argsort(dim=1, stable=True).argsort(dim=1)  # the rank of every pixel's draw
        swapped = out < (self._alpha(state["query"]) * count).long().clamp_min(1)[:, None]
        taken = torch.zeros(batch, pixels, dtype=torch.bool, device=clean.device).scatter(1, corners, True)
        fresh = draws[:, count : count + pixels].masked_fill(taken, 2).argsort(dim=1, stable=True)[:, :count]
        swapped &= out < pixels - count  # not more pixels than there are others
        fresh = fresh.gather(1, out)
        colours = _signs(draws[:, count + pixels :], clean).view(values.shape).clamp_min(0)
        return torch.where(swapped, fresh, corners), torch.where(swapped[:, :, None, None, None], colours, values)

    def _other_patch(self, state: State, threat: Threat) -> tuple[Tensor, Tensor]:
        clean, query = state["clean"], state["query"]
        channels, side = clean.shape[1], threat.side
        corners, values = state["best_corners"].clone(), state["best_values"].clone()
        draws = uniforms(state["key"], query, _FIXED + channels)
        window = (self._alpha(query).sqrt() * side).long().clamp_min(1)
        signs = _signs(draws[:, _FIXED:], clean)
        table = torch.cat([window[:, None], query[:, None], corners, draws[:, :_FIXED]], 1).tolist()  # one transfer
        for row, numbers in enumerate(table):
            size, query_number, *places = map(int, numbers[: 2 + threat.count])
            draw = numbers[2 + threat.count :]
            patch = int(draw[0] * threat.count)
            if query_number % _MOVED_EVERY == 0:
                corners[row, patch] = self._moved(places, patch, draw, threat, clean, query=query_number)
                continue
            top, left = (int(draw[axis] * (side - size + 1)) for axis in (1, 2))
            part = values[row, patch, :, top : top + size, left : left + size]
            if size > 1:
                part.add_(signs[row, :, None, None]).clamp_(0, 1)
            else:
                channel = int(draw[3] * channels)
                part[channel] = 1 - part[channel]
        return corners, values

    def _moved(self, corners: list[int], at: int, draw: list[float], threat: Threat, clean: Images, query: int) -> int:
        """Return another corner for one of the patches."""
        allowed = allowed_corners(threat, *clean.shape[2:])
        if threat.corners != "anywhere":
            free = allowed.flatten().clone()
            free[corners] = False
            places = free.nonzero()[:, 0]
            return int(places[int(draw[4] * len(places))]) if len(places) else corners[at]
        height, width = allowed.shape
        reach = _FURTHEST * (1 - query / self.queries)
        row, column = divmod(corners[at], width)
        row = round(row + (2 * draw[4] - 1) * reach * clean.shape[2])
        column = round(column + (2 * draw[5] - 1) * reach * clean.shape[3])
        return min(max(row, 0), height - 1) * width + min(max(column, 0), width - 1)


def _signs(draws: Draws, like: Images) -> Tensor:
    return torch.where(draws < 0.5, -1.0, 1.0).to(like.dtype)


ATTACK = SparseRS
