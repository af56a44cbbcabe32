"""Search for two pixels: show many single ones, then the pairs whose margins are predicted to be lowest.

What stands after sigma-zero and Sparse-RS on networks that never saw replaced pixels often falls here. The gradient of
the clean image says little about a pixel that becomes black or white, so single pixels are shown to the model; the
gradient only says how two of them add up. The form is this project's. To rank changes by the gradient and to try the
best is from JSMA: Papernot, McDaniel, Jha, Fredrikson, Celik & Swami (2016), arXiv:1511.07528.
"""

from itertools import product
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float, Int64
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks.shared.ball import require_norm
from robustbench_kpca.attacks.shared.losses import margin
from robustbench_kpca.attacks.shared.rows import choose, constant
from robustbench_kpca.protocols.scenario import Count
from robustbench_kpca.protocols.threat import Norm, Threat
from robustbench_kpca.types import Images, Keys, Labels, Mask, PerSample, Query, State

Pairs = Int64[Tensor, "batch set 2"]
"""Place and corner of each changed pixel as one number, place * 2^channels + corner; -1: no pixel."""
Worth = Float[Tensor, "batch single"]
_KEPT = 512  # predicted pairs that wait


@dataclass(frozen=True, config=FORBID)
class PixelPairs:
    """Each step takes one gradient, and shows the `tries` most promising changes of corners c in {0, 1}^channels.

    m(s) is the margin z_y - max_{k != y} z_k with the single pixel s changed, m(0) that of the clean image, g its
    gradient, and d(s) the change of the image. First the `places` pixels with the lowest m(0) + g(0) d(s) are shown,
    each with the corner farthest from its colour; then the other corners of the `candidates` places of lowest margin.
    Then the `candidates` single pixels b of lowest m(b) are taken in turn, one a step, to predict pairs:

        m(b, s) = m(b) + m(s) - m(0) + (g(b) - g(0)) d(s).

    Of all predicted pairs those of lowest margin are shown. If more than two pixels may change, two do; if only one,
    the search ends before the pairs. The attack is deterministic.

    A sample of three channels that is never misclassified costs ceil(`places` / `tries`) + ceil(7 `candidates` /
    `tries`) + `candidates` backward passes, `tries` + 1 times as many forward passes, and a last one.
    """

    version: ClassVar[int] = 1
    norms: ClassVar[tuple[Norm, ...]] = ("l0",)
    most_passes: ClassVar[tuple[str, str]] = (
        "backwards * (tries + 1) + 1",
        "-(-places // tries) - (-7 * candidates // tries) + candidates",
    )
    least_passes: ClassVar[tuple[str, str]] = ("backwards + 1", "-(-places // tries) - (-7 * candidates // tries)")
    places: Count
    candidates: Count
    tries: Annotated[int, Field(ge=1, le=_KEPT)]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin before any single pixel is shown."""
        require_norm(threat, "pixel_pairs", *self.norms)
        singles = x.new_full((len(x), x[0, 0].numel() * 2 ** x.shape[1]), torch.inf)
        lowest = singles[:, 0]
        return {
            "x": x,
            "clean": x,
            "y": y,
            "slope": torch.zeros_like(x),
            "height": lowest,
            "singles": singles,
            "used": torch.zeros_like(singles, dtype=torch.bool),
            "pairs": keys.new_full((len(x), _KEPT, 2), -1),
            "predicted": x.new_full((len(x), _KEPT), torch.inf),
            "lowest": lowest,
            "step": torch.zeros_like(keys),
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Take the gradient at the next base, or at the clean image, and show what it promises."""
        clean, y, step = state["clean"], state["y"], state["step"]
        firsts, seconds = -(-self.places // self.tries), -(-7 * self.candidates // self.tries)
        pairing = step >= firsts + seconds
        base = state["singles"].masked_fill(state["used"], torch.inf).argmin(1)
        base = torch.where(pairing, base, -1)
        height, slope = query.gradient(painted(clean, base[:, None]), lambda logits: margin(logits, y))
        state = state | {"height": torch.where(step > 0, state["height"], height)}
        state = state | {"slope": choose(step > 0, state["slope"], slope)}
        state = state | self._foreseen(state, base, height, slope)
        singles = self._singles(state, height, slope, step < firsts)
        sets = torch.where(pairing[:, None, None], state["pairs"][:, : singles.shape[1]], singles)
        logits_of_each = query.logits_of_each(painted(clean, pixels) for pixels in sets.unbind(1))
        margins = torch.stack([margin(logits, y) for logits in logits_of_each], 1)
        known = state["singles"].scatter(1, sets[:, :, 0].clamp_min(0), margins)
        lowest, at = margins.min(1)
        best = sets.gather(1, at[:, None, None].expand(-1, 1, 2))[:, 0]
        last = firsts + seconds + (self.candidates if threat.count > 1 else 0)
        return state | {
            "x": choose(lowest < state["lowest"], painted(clean, best), state["x"]),
            "singles": choose(pairing, state["singles"], known),
            "lowest": torch.minimum(lowest, state["lowest"]),
            "step": step + 1,
            "finished": step + 1 >= last,
        }

    def _singles(self, state: State, height: PerSample, slope: Images, first: Mask) -> Pairs:
        """Return the next single pixels: the farthest corners in the order of the gradient, or the other corners."""
        known, change = state["singles"], _changes(state["clean"])
        far = change.abs().sum(1)
        farthest = torch.zeros_like(far).scatter(2, far.argmax(2, keepdim=True), 1.0) > 0
        promised = _linear(height, slope, change).masked_fill(~farthest.flatten(1), torch.inf)
        of_place = known.view(far.shape).amin(2, keepdim=True).expand_as(far).flatten(1)
        worth = torch.where(first[:, None], promised, of_place).masked_fill(known < torch.inf, torch.inf)
        numbers = worth.topk(min(self.tries, worth.shape[1]), largest=False).indices
        return torch.stack([numbers, torch.full_like(numbers, -1)], 2)

    def _foreseen(self, state: State, base: Labels, height: PerSample, slope: Images) -> State:
        """Return the predicted pairs, those of the base among them, the best first, and which bases were used."""
        known, change = state["singles"], _changes(state["clean"])
        pairing, corners = base >= 0, change.shape[3]
        number = base.clamp_min(0)[:, None]
        worth = _linear(height, slope - state["slope"], change) + known - state["height"][:, None]
        place = torch.arange(known.shape[1], device=known.device)[None] // corners
        used = state["used"] | torch.zeros_like(state["used"]).scatter(1, number, pairing[:, None])
        excluded = used | (place == number // corners) | ~pairing[:, None]
        worth, partner = worth.masked_fill(excluded, torch.inf).topk(min(_KEPT, known.shape[1]), largest=False)
        shown = torch.arange(self.tries, device=known.device)
        worth = torch.cat([state["predicted"].index_fill(1, shown, torch.inf), worth], 1)
        pairs = torch.cat([state["pairs"], torch.stack([number.expand_as(partner), partner], 2)], 1)
        order = worth.argsort(dim=1, stable=True)[:, :_KEPT]
        chosen = pairs.gather(1, order[..., None].expand(-1, -1, 2))
        return {"pairs": chosen, "predicted": worth.gather(1, order), "used": used}


def painted(clean: Images, numbers: Int64[Tensor, "batch pixel"]) -> Images:
    """Return the clean images with the pixels of these numbers in their corners; numbers below zero change nothing."""
    new, colours = clean.flatten(2).clone(), _corners(clean)
    rows = torch.arange(len(clean), device=clean.device)
    for number in numbers.T:
        place, colour = number.clamp_min(0) // len(colours), colours[number.clamp_min(0) % len(colours)]
        new[rows, :, place] = torch.where(number[:, None] < 0, new[rows, :, place], colour)
    return new.view(clean.shape)


def _corners(like: Images) -> Float[Tensor, "corner channel"]:
    flat = tuple(value for corner in product((0.0, 1.0), repeat=like.shape[1]) for value in corner)
    return constant(flat, like.device, like.dtype).view(-1, like.shape[1])


def _changes(clean: Images) -> Float[Tensor, "batch channel place corner"]:
    return _corners(clean).T[None, :, None] - clean.flatten(2)[..., None]


def _linear(height: PerSample, slope: Images, change: Tensor) -> Worth:
    return height[:, None] + (slope.flatten(2)[..., None] * change).sum(1).flatten(1)


ATTACK = PixelPairs
