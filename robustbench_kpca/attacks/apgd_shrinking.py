"""Auto-PGD on a segmenter in balls that shrink to the one allowed, each search begun where the last did most harm.

Croce, Singh & Hein (2024), "Towards Reliable Evaluation and Fast Training of Robust Semantic Segmentation Models",
arXiv:2306.12941, section 3: the search of their ensemble SEA.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from robustbench_kpca.attacks._auto_steps import checkpoints, fresh, halve, move, note
from robustbench_kpca.attacks.shared.ball import into_box, per_sample, require_norm, require_untargeted, uniform_in_ball
from robustbench_kpca.attacks.shared.dense_losses import DenseLossName, dense_objective
from robustbench_kpca.attacks.shared.losses import mean
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.strict import FORBID
from robustbench_kpca.types import Images, Keys, Labels, Logits, PerSample, Query, State

_RADII = (2.0, 1.5, 1.0)  # of the three phases, in units of eps
_EARLY = 0.3  # of the iterations, in each of the first two phases


@dataclass(frozen=True, config=FORBID)
class ShrinkingAPGD:
    """Three phases: floor(0.3 `steps`) iterations in the ball of radius 2 eps, as many with 1.5 eps, the rest with eps.

    The first phase begins at a point drawn uniformly from its ball, each other one at the point with the fewest right
    pixels of the last phase (of equal ones the latest), projected. Steps are those of `_auto_steps` on `loss`
    (`_dense_losses.dense_objective`), whose checkpoints and step size, 2 radii at first, begin anew in every phase.

    Iterates of the first two phases lie outside the ball as a rule and count only where they do not; `x`, the
    proposal, is the clean image until it is the point with the fewest right pixels of the last phase. `steps` is 4 at
    least, so that no phase is empty.

    A sample costs `steps` + 3 forward and backward passes, and 1 forward for the loop's check.
    """

    many_labels: ClassVar[bool] = True
    steps: Annotated[int, Field(ge=4, strict=True)]
    loss: DenseLossName
    rho: Annotated[float, Field(ge=0, le=1)]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Draw the first point.

        Raises:
            BadInputError: a norm other than L-infinity; a target.

        """
        require_norm(threat, "apgd_shrinking", "linf")
        require_untargeted(threat, "apgd_shrinking")
        count, scalar = torch.zeros_like(keys), x.new_zeros(len(x))
        reach = _RADII[0] * threat.eps
        first = Threat(threat.norm, min(1.0, reach) if threat.clip else reach, clip=threat.clip)
        return fresh(x, keys) | {
            "x": x,
            "point": uniform_in_ball(x, first, keys),
            "clean": x,
            "y": y,
            "phase": count,
            "iteration": count,  # of the phase
            "worst": x,
            "right": scalar,  # the share of the pixels that is right there
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Take the gradient at `point` and move on; at the end of a phase, begin the next."""
        point, radius = state["point"], _radius(state, threat)
        loss, gradient, right = self._look(state, query)
        state = _note_right(state, right)
        state, back = halve(note(state, point, loss, gradient, 2 * radius), self._window(state), self.rho)
        moved, left = move(state, point, back, gradient, lambda x: _into(x, state["clean"], radius, threat), "linf")
        return self._next_phase(state | {"point": moved, "previous": left, "iteration": state["iteration"] + 1}, threat)

    def _look(self, state: State, query: Query) -> tuple[PerSample, Images, PerSample]:
        """Ask for loss, gradient and share of right pixels, of the last phase apart: it alone is bound to the ball."""
        outside = state["phase"] < len(_RADII) - 1
        loss, right = torch.zeros_like(state["right"]), torch.zeros_like(state["right"])
        gradient = torch.zeros_like(state["point"])
        for mask, beyond in ((outside, True), (~outside, False)):
            if not bool(mask.any()):
                continue
            seen: list[PerSample] = []  # one entry a draw
            y = state["y"][mask]

            def climbed(logits: Logits, y: Labels = y, seen: list[PerSample] = seen) -> PerSample:
                seen.append(mean((logits.argmax(1) == y).to(logits.dtype), y))
                return dense_objective(self.loss, logits, y)

            asked = query if bool(mask.all()) else query.rows(mask)
            values, slopes = asked.gradient(state["point"][mask], climbed, outside=beyond)
            loss[mask], gradient[mask] = values.to(loss), slopes
            right[mask] = torch.stack(seen).mean(0).to(right)
        return loss, gradient, right

    def _lengths(self) -> tuple[int, int, int]:
        """Return the iterations of each phase."""
        early = int(_EARLY * self.steps)
        return early, early, self.steps - 2 * early

    def _window(self, state: State) -> Labels:
        """Return how many iterations each sample has behind it since its last checkpoint, 0 where it is at none."""
        lengths = self._lengths()
        tables = [checkpoints(length) + [0] * (max(lengths) - length) for length in lengths]
        return torch.tensor(tables, device=state["phase"].device)[state["phase"], state["iteration"]]

    def _next_phase(self, state: State, threat: Threat) -> State:
        """Begin the next phase where the last iteration of one is over."""
        over = state["iteration"] > torch.tensor(self._lengths(), device=state["phase"].device)[state["phase"]]
        if not bool(over.any()):
            return state
        finished = over & (state["phase"] == len(_RADII) - 1)
        state = state | {
            "x": torch.where(per_sample(finished, state["x"]), state["worst"], state["x"]),
            "phase": state["phase"] + (over & ~finished),
            "iteration": torch.where(over, 0, state["iteration"]),
            "finished": finished,
        }
        begun = _into(state["worst"], state["clean"], _radius(state, threat), threat)
        return state | {"point": torch.where(per_sample(over, begun), begun, state["point"])}


def _note_right(state: State, right: PerSample) -> State:
    """Keep the point with the fewest right pixels of the phase."""
    fewer = (state["iteration"] == 0) | (right <= state["right"])
    return state | {
        "worst": torch.where(per_sample(fewer, state["point"]), state["point"], state["worst"]),
        "right": torch.where(fewer, right, state["right"]),
    }


def _radius(state: State, threat: Threat) -> PerSample:
    radii = torch.tensor(_RADII, device=state["phase"].device, dtype=state["clean"].dtype)
    return radii[state["phase"]] * threat.eps


def _into(x: Images, clean: Images, radius: PerSample, threat: Threat) -> Images:
    """Project onto the ball of each sample's own radius, and the box."""
    reach = per_sample(radius, x)
    return into_box(clean + (x - clean).clamp(-reach, reach), threat)


ATTACK = ShrinkingAPGD
