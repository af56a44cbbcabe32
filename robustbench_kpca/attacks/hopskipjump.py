"""HopSkipJump: follow the decision boundary towards the clean image, using only predicted labels.

Chen, Jordan & Wainwright (2020), "HopSkipJumpAttack: A Query-Efficient Decision-Based Attack", arXiv:1904.02144,
algorithm 2; constants as in the authors' program.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks.shared.ball import (
    ascent_direction,
    distance,
    per_sample,
    require_box,
    require_norm,
    require_untargeted,
)
from robustbench_kpca.attacks.shared.draws import gaussians, uniforms
from robustbench_kpca.attacks.shared.rows import choose
from robustbench_kpca.protocols.threat import Norm, Threat
from robustbench_kpca.types import Images, Keys, Labels, Mask, PerSample, Query, State

_FIND, _BLEND, _SEARCH, _PROBE, _JUMP = range(5)
_BLENDED = 1e-3  # tolerance of the bisection between the first image (noise) and the clean image
_FIRST_SPREAD = 0.1  # distance of the probes in the first iteration


@dataclass(frozen=True, config=FORBID)
class HopSkipJump:
    """x_t = Search(x_{t-1} + e_t direction(v_t)), v_t = mean_b (phi_b - mean phi) u_b, phi_b = phi(x_{t-1} + s_t u_b).

    phi is 1 where an image is misclassified, else -1; the attack uses nothing else of the model. Every query is one
    step:

    - find: draw uniform noise until it is misclassified; blend: bisect between the clean image and it, to 0.001;
    - search: bisect from a misclassified point to the boundary, for d pixel values: on the line to the clean image (L2,
      to the fraction theta = `gamma` / d^1.5), or by clipping to smaller cubes around it (L-infinity, `gamma` / d^2);
    - probe: draw `probes` sqrt(t), at most `max_probes`, random unit directions u_b (Gaussian, or uniform in the cube);
      the probes lie at distance s_t = `gamma` / d times the distance at which the search began (0.1 at first), clipped
      to the box; if all phi_b are equal, v_t is their sign times mean u_b;
    - jump: begin with e_t = ||x_{t-1} - x|| / sqrt(t) and halve it until the new point is misclassified.

    The search may leave the ball. The last proposal is the closest misclassified image if it lies in the ball, else the
    clean image. The loop stops a sample at its first misclassified image in the ball. A sample that is never
    misclassified costs `queries` + 1 forward passes per restart.
    """

    version: ClassVar[int] = 1
    most_passes: ClassVar[tuple[str, str]] = ("queries + 1", "0")
    queries: Annotated[int, Field(ge=1, strict=True)]
    probes: Annotated[int, Field(ge=1, strict=True)]
    max_probes: Annotated[int, Field(ge=1, strict=True)]
    gamma: Annotated[float, Field(gt=0)]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin in the phase that looks for a misclassified image.

        Raises:
            BadInputError: the norm is neither L-infinity nor L2, the attack is targeted, or clipping is off.
        """
        require_norm(threat, "hopskipjump", "linf", "l2")
        require_box(threat, "hopskipjump")
        require_untargeted(threat, "hopskipjump")
        number, count = torch.zeros_like(keys, dtype=torch.float64), torch.zeros_like(keys)
        return {
            "x": x,
            "clean": x,
            "y": y,
            "key": keys,
            "query": count,
            "phase": count + _FIND,
            "iteration": count,
            "point": x,  # misclassified start of a search; after the search, the point on the boundary
            "low": number,
            "high": number,
            "tolerance": number,
            "spread": number,
            "probe": count,
            "agreed": number,  # sum of phi_b
            "drawn": x * 0,  # sum of u_b
            "answered": x * 0,  # sum of phi_b u_b; then the direction of the jump
            "jump": number,
            "best": x,
            "best_distance": number + torch.inf,
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Send one query per sample and update each sample according to its phase."""
        phase, clean = state["phase"], state["clean"]
        shown, groups = torch.empty_like(clean), [(phase == one).nonzero()[:, 0] for one in range(5)]
        for one, rows in enumerate(groups):
            if len(rows):
                shown[rows] = _query_images(one, _rows_of(state, rows), threat.norm)
        hit = query.logits(shown, outside=True).argmax(1) != state["y"]
        far = distance(shown, clean, threat.norm)
        closer = hit & (far < state["best_distance"])
        best = choose(closer, shown, state["best"])
        best_distance = torch.where(closer, far, state["best_distance"])
        learn = (self._find, self._blend, self._search, self._probe, self._jump)
        new = {name: rows.clone() for name, rows in state.items()}
        for one, rows in enumerate(groups):
            if len(rows):
                for name, value in learn[one](_rows_of(state, rows), shown[rows], hit[rows], threat.norm).items():
                    new[name][rows] = value
        return new | {
            "x": choose(best_distance <= threat.eps, best, clean),
            "best": best,
            "best_distance": best_distance,
            "query": state["query"] + 1,
            "finished": state["query"] + 1 >= self.queries,
        }

    def _find(self, state: State, shown: Images, hit: Mask, norm: Norm) -> State:  # noqa: ARG002
        return {
            "phase": torch.where(hit, _BLEND, _FIND),
            "point": shown,
            "low": torch.zeros_like(state["low"]),
            "high": torch.ones_like(state["high"]),
            "tolerance": torch.full_like(state["tolerance"], _BLENDED),
        }

    def _blend(self, state: State, shown: Images, hit: Mask, norm: Norm) -> State:  # noqa: ARG002
        state, over = _bisect(state, hit)
        point = _interpolate(state["point"], state["clean"], state["high"], "l2")
        return _select(over, self._begin_search(state | {"point": point}, norm), state)

    def _begin_search(self, state: State, norm: Norm) -> State:
        far, size = distance(state["point"], state["clean"], norm), state["clean"][0].numel()
        theta = self.gamma / (size**1.5 if norm == "l2" else size**2)
        high = torch.ones_like(far) if norm == "l2" else far
        least = torch.finfo(state["clean"].dtype).eps  # smaller changes are lost to rounding
        return state | {
            "phase": torch.full_like(state["phase"], _SEARCH),
            "low": torch.zeros_like(far),
            "high": high,
            "tolerance": (theta * high.clamp(max=1)).clamp_min(least),
            "spread": self.gamma * far / size,
        }

    def _search(self, state: State, shown: Images, hit: Mask, norm: Norm) -> State:  # noqa: ARG002
        state, over = _bisect(state, hit)
        first = state["iteration"] == 0
        probing = state | {
            "phase": torch.full_like(state["phase"], _PROBE),
            "iteration": state["iteration"] + 1,
            "point": _interpolate(state["point"], state["clean"], state["high"], norm),
            "spread": torch.where(first, _FIRST_SPREAD, state["spread"]),
            "probe": torch.zeros_like(state["probe"]),
            "agreed": torch.zeros_like(state["agreed"]),
            "drawn": torch.zeros_like(state["drawn"]),
            "answered": torch.zeros_like(state["answered"]),
        }
        return _select(over, probing, state)

    def _probe(self, state: State, shown: Images, hit: Mask, norm: Norm) -> State:
        spread = state["spread"].to(shown.dtype).clamp_min(torch.finfo(shown.dtype).tiny)  # 0 at the clean image itself
        u = (shown - state["point"]) / per_sample(spread, shown)
        phi = torch.where(hit, 1.0, -1.0)
        state = state | {
            "probe": state["probe"] + 1,
            "agreed": state["agreed"] + phi,
            "drawn": state["drawn"] + u,
            "answered": state["answered"] + per_sample(phi.to(u.dtype), u) * u,
        }
        time = state["iteration"].double()
        over = state["probe"] >= (self.probes * time.sqrt()).floor().clamp(max=self.max_probes)
        mean = (state["agreed"] / state["probe"]).to(u.dtype)
        mixed = state["answered"] - per_sample(mean, u) * state["drawn"]
        v = choose(mean.abs() == 1, state["answered"], mixed)
        far = distance(state["point"], state["clean"], norm)
        jumping = {
            "phase": torch.full_like(state["phase"], _JUMP),
            "answered": ascent_direction(v, norm),
            "jump": far / time.sqrt(),
        }
        return _select(over, state | jumping, state)

    def _jump(self, state: State, shown: Images, hit: Mask, norm: Norm) -> State:
        landed = self._begin_search(state | {"point": shown}, norm)
        return _select(hit, landed, state | {"jump": state["jump"] / 2})


def _rows_of(state: State, rows: Labels) -> State:
    return {name: values[rows] for name, values in state.items()}


def _select(mask: Mask, yes: State, no: State) -> State:
    return {name: choose(mask, rows, no[name]) for name, rows in yes.items()}


def _bisect(state: State, hit: Mask) -> tuple[State, Mask]:
    """Return the halved interval, and whether it is within the tolerance."""
    middle = (state["low"] + state["high"]) / 2
    low, high = torch.where(hit, state["low"], middle), torch.where(hit, middle, state["high"])
    return state | {"low": low, "high": high}, high - low <= state["tolerance"]


def _interpolate(point: Images, clean: Images, level: PerSample, norm: Norm) -> Images:
    """Return the image at fraction `level` of the way to `point` (L2), or `point` clipped to distance `level`."""
    delta, level = point - clean, per_sample(level.to(clean.dtype), clean)
    delta = delta * level if norm == "l2" else delta.clamp(-level, level)
    return (clean + delta).clamp(0, 1)


def _query_images(phase: int, state: State, norm: Norm) -> Images:
    """Return the query images of samples that are all in the same phase."""
    clean, point, counter = state["clean"], state["point"], state["query"] + 1
    if phase == _FIND:
        return uniforms(state["key"], counter, clean[0].numel()).to(clean.dtype).view(clean.shape)
    if phase in (_BLEND, _SEARCH):
        middle = (state["low"] + state["high"]) / 2
        return _interpolate(point, clean, middle, "l2" if phase == _BLEND else norm)
    if phase == _PROBE:
        if norm == "l2":
            u = gaussians(state["key"], counter, clean)
        else:
            u = (2 * uniforms(state["key"], counter, clean[0].numel()) - 1).to(clean.dtype).view(clean.shape)
        u = u / per_sample(u.flatten(1).norm(dim=1), u)
        return (point + per_sample(state["spread"].to(u.dtype), u) * u).clamp(0, 1)
    return (point + per_sample(state["jump"].to(clean.dtype), clean) * state["answered"]).clamp(0, 1)


ATTACK = HopSkipJump
