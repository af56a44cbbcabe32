"""Auto-PGD for segmentation, in L-infinity balls that shrink to eps; each phase starts at the best point of the last.

Croce, Singh & Hein (2024), "Towards Reliable Evaluation and Fast Training of Robust Semantic Segmentation Models",
arXiv:2306.12941, section 3: the search of their ensemble SEA.
"""

from itertools import chain
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._auto_steps import ascend, checkpoints, initial_state
from robustbench_kpca.attacks.shared.ball import into_box, per_sample, require_norm, uniform_in_ball
from robustbench_kpca.attacks.shared.dense_losses import DenseLossName, dense_objective
from robustbench_kpca.attacks.shared.losses import mean
from robustbench_kpca.attacks.shared.rows import choose, constant
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels, Logits, PerSample, Query, State

_RADII = (2.0, 1.5, 1.0)  # radii of the three phases, in units of eps
_EARLY = 0.3  # fraction of the iterations in each of the first two phases


@dataclass(frozen=True, config=FORBID)
class ShrinkingAPGD:
    """Three phases: floor(0.3 `steps`) iterations with radius 2 eps, the same number with 1.5 eps, the rest with eps.

    The first phase begins at a point drawn uniformly from its ball. Each later phase begins at the projected point with
    the fewest correct pixels of the previous phase (the latest such point). The update is that of `_auto_steps` on
    `loss` (`shared.dense_losses.dense_objective`); its checkpoints and its step size, initially 2 radii, restart in
    every phase.

    Iterates of the first two phases usually lie outside the allowed ball; they count only if they lie inside it. The
    proposal `x` is the clean image until the last phase ends, then that phase's point with the fewest correct pixels.
    `steps` is at least 4, so that no phase is empty.

    A sample costs `steps` + 3 forward and backward passes, and 1 forward pass for the loop's check.
    """

    version: ClassVar[int] = 1
    many_labels: ClassVar[bool] = True
    most_passes: ClassVar[tuple[str, str]] = ("steps + 4", "steps + 3")
    steps: Annotated[int, Field(ge=4, strict=True)]
    loss: DenseLossName
    rho: Annotated[float, Field(ge=0, le=1)]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Draw the first point.

        Raises:
            BadInputError: the norm is not L-infinity.
        """
        require_norm(threat, "apgd_shrinking", "linf")
        count, scalar = torch.zeros_like(keys), x.new_zeros(len(x))
        reach = _RADII[0] * threat.eps
        first = Threat(threat.norm, min(1.0, reach) if threat.clip else reach, clip=threat.clip)
        return initial_state(x, keys) | {
            "x": x,
            "point": uniform_in_ball(x, first, keys),
            "clean": x,
            "y": y,
            "phase": count,
            "iteration": count,  # within the phase
            "worst": x,
            "right": scalar,  # fraction of pixels that are correct at `worst`
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Compute the gradient at `point` and update; at the end of a phase, begin the next."""
        x, radius = state["point"], _radius(state, threat)
        loss, g, right = self._evaluate(state, query)
        x_next, state = ascend(
            _record_fewest_correct(state, right),
            x,
            loss,
            g,
            eta_0=2 * radius,
            window=self._window(state),
            rho=self.rho,
            proj=lambda x: _project(x, state["clean"], radius, threat),
            norm="linf",
        )
        return self._next_phase(state | {"point": x_next}, threat)

    def _evaluate(self, state: State, query: Query) -> tuple[PerSample, Images, PerSample]:
        """Return loss, gradient and fraction of correct pixels; only last-phase points must lie in the allowed ball."""
        outside = state["phase"] < len(_RADII) - 1
        number = int(outside.sum())
        if number in (0, len(outside)):
            return self._ask(state["point"], state["y"], query, outside=number > 0)
        loss, right = torch.zeros_like(state["right"]), torch.zeros_like(state["right"])
        gradient = torch.zeros_like(state["point"])
        for mask, beyond in ((outside, True), (~outside, False)):
            answers = self._ask(state["point"][mask], state["y"][mask], query.rows(mask), outside=beyond)
            loss[mask], gradient[mask], right[mask] = answers
        return loss, gradient, right

    def _ask(self, point: Images, y: Labels, query: Query, *, outside: bool) -> tuple[PerSample, Images, PerSample]:
        """Return loss, gradient and fraction of correct pixels of samples in phases of one kind."""
        correct: list[PerSample] = []  # one entry per draw

        def objective(logits: Logits) -> PerSample:
            correct.append(mean((logits.argmax(1) == y).to(logits.dtype), y))
            return dense_objective(self.loss, logits, y)

        values, slopes = query.gradient(point, objective, outside=outside)
        return values.to(point.dtype), slopes, torch.stack(correct).mean(0).to(point.dtype)

    def _lengths(self) -> tuple[int, int, int]:
        """Return the number of iterations of each phase."""
        early = int(_EARLY * self.steps)
        return early, early, self.steps - 2 * early

    def _window(self, state: State) -> Labels:
        """Return each sample's number of iterations since its last checkpoint; 0 if it is not at a checkpoint."""
        lengths = self._lengths()
        tables = [checkpoints(length) + [0] * (max(lengths) - length) for length in lengths]
        windows = constant(tuple(chain.from_iterable(tables)), state["phase"].device)
        return windows[state["phase"] * (max(lengths) + 1) + state["iteration"]]

    def _next_phase(self, state: State, threat: Threat) -> State:
        over = state["iteration"] > constant(self._lengths(), state["phase"].device)[state["phase"]]
        if not bool(over.any()):
            return state
        finished = over & (state["phase"] == len(_RADII) - 1)
        state = state | {
            "x": choose(finished, state["worst"], state["x"]),
            "phase": state["phase"] + (over & ~finished),
            "iteration": torch.where(over, 0, state["iteration"]),
            "finished": finished,
        }
        begun = _project(state["worst"], state["clean"], _radius(state, threat), threat)
        return state | {"point": choose(over, begun, state["point"])}


def _record_fewest_correct(state: State, right: PerSample) -> State:
    fewer = (state["iteration"] == 0) | (right <= state["right"])
    return state | {
        "worst": choose(fewer, state["point"], state["worst"]),
        "right": torch.where(fewer, right, state["right"]),
    }


def _radius(state: State, threat: Threat) -> PerSample:
    radii = constant(_RADII, state["phase"].device, state["clean"].dtype)
    return radii[state["phase"]] * threat.eps


def _project(x: Images, clean: Images, radius: PerSample, threat: Threat) -> Images:
    """Project onto the ball of each sample's own radius, then clip to the box."""
    reach = per_sample(radius, x)
    return into_box(clean + (x - clean).clamp(-reach, reach), threat)


ATTACK = ShrinkingAPGD
