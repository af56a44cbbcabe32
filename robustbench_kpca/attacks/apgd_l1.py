"""Auto-PGD for L1: sparse steps in balls that shrink to the one allowed, each step back into the ball inside the box.

Croce & Hein (2021), "Mind the box: l1-APGD for sparse adversarial attacks on image classifiers", arXiv:2103.01208,
sections 2 (projection) and 3 (steps, adaptive sparsity, radii).
"""

import math
from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from robustbench_kpca.attacks._l1 import nearest_in_l1
from robustbench_kpca.attacks._targets import aim, require_one_target, runs_of, target_of_run
from robustbench_kpca.attacks.shared.ball import per_sample, require_norm, require_untargeted
from robustbench_kpca.attacks.shared.draws import noise
from robustbench_kpca.attacks.shared.losses import LossName, objective
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.strict import FORBID
from robustbench_kpca.types import Images, Keys, Labels, Mask, PerSample, Query, State

_RADII = (3, 2, 1)  # of the three phases of a run, in units of eps
_SHRINK, _LEAST_STEP = 1.5, 0.1
_SPARSER = 0.95


@dataclass(frozen=True, config=FORBID)
class APGDL1:
    """One run of `steps` iterations or, targeted, one for each of the `targets` strongest wrong classes in turn.

    A run has three phases: ceil(0.3 `steps`) iterations in the ball of radius r = 3 eps, as many with r = 2 eps, the
    rest with r = eps. The first begins at Gaussian noise, each other one at the point of highest loss of the last,
    projected. With n the number of pixel values, Proj the nearest point of ball and box, and k the share of n to move,

        x_{t+1} = Proj(x_t + eta s / ||s||_1),   s_i = sign(g_i) where |g_i| is among the n k largest, else 0,

    where g is the gradient of the loss. k is two thirds of the share of pixel values in which the best point differs
    from the clean image, and eta = r at first. Every max(0.04 of the phase's iterations, 1) iterations k is renewed. If
    that share is now less than 0.95 of what it was then, eta is r again and the search goes on from the best point;
    else eta is divided by 1.5, down to r / 10.

    Iterates of the first two phases lie outside the ball as a rule and count only where they do not; `x`, the
    proposal, is the clean image until it is the best point of the last phase. Losses, targets and their number are
    those of `APGD`; the authors' ensemble uses `ce` with 5 restarts and `dlr_targeted` with 5 targets. `steps` is 5 at
    least, so that no phase is empty.

    A sample that is never broken costs `steps` + 3 forward and backward passes a run, 1 forward for the loop's check,
    and, if targeted, 1 forward for the clean logits.
    """

    steps: Annotated[int, Field(ge=5, strict=True)]
    loss: LossName
    targets: Annotated[int, Field(ge=1, strict=True)]

    def __post_init__(self) -> None:
        require_one_target(self.loss, self.targets)

    @property
    def _targeted(self) -> bool:
        return self.loss.endswith("_targeted")

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Draw the first point. Only `step` can ask which classes to aim at: until then `classes` is 0.

        Raises:
            BadInputError: the norm is not L1.

        """
        require_norm(threat, "apgd_l1", "l1")
        if self.loss != "ce":
            require_untargeted(threat, f"apgd_l1 with loss {self.loss}")
        count = torch.zeros_like(keys)
        return {
            "x": x,
            "point": self._first(x, threat, keys, count),
            "clean": x,
            "y": y,
            "key": keys,
            "targets": torch.zeros_like(keys)[:, None].expand(-1, self.targets),
            "classes": count,
            "run": count,
            "phase": count,
            "iteration": count,  # of the phase
            "best": x,
            "best_gradient": torch.zeros_like(x),
            "best_loss": x.new_zeros(len(x)),
            "step_size": torch.zeros_like(keys, dtype=torch.float64),
            "moved": count,  # pixel values in which the best point differed from the clean image, at the last check
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Take the gradient at `point` and move on; at the end of a phase or run, begin the next."""
        state = aim(state, query) if self._targeted else state
        y, target, radius = state["y"], target_of_run(state), _radius(state, threat)
        loss, gradient = query.gradient(
            state["point"], lambda logits: objective(self.loss, logits, y, target, threat), outside=True
        )
        state, back = self._check(_note(state, loss.to(gradient.dtype), gradient, radius), radius)
        moved = nearest_in_l1(_step(state, back, gradient), state["clean"], radius, clip=threat.clip)
        return self._next_phase(state | {"point": moved, "iteration": state["iteration"] + 1}, threat)

    def _lengths(self) -> tuple[int, int, int]:
        """Return the iterations of each phase."""
        early = math.ceil(0.3 * self.steps)
        return early, early, self.steps - 2 * early

    def _check(self, state: State, radius: PerSample) -> tuple[State, Mask]:
        """Renew sparsity and step size where it is time; return where the search goes back to the best point."""
        every = _of_phase([max(int(0.04 * length), 1) for length in self._lengths()], state)
        here = (state["iteration"] > 0) & (state["iteration"] % every == 0)
        moved = _moved(state["best"], state["clean"])
        sparser = here & (moved < _SPARSER * state["moved"])
        shorter = torch.maximum(state["step_size"] / _SHRINK, radius * _LEAST_STEP)
        step_size = torch.where(sparser, radius, torch.where(here, shorter, state["step_size"]))
        return state | {"step_size": step_size, "moved": torch.where(here, moved, state["moved"])}, sparser

    def _next_phase(self, state: State, threat: Threat) -> State:
        """Begin the next phase or run where the last iteration of one is over."""
        over = state["iteration"] > _of_phase(list(self._lengths()), state)
        if not bool(over.any()):
            return state
        phase = state["phase"] + over
        ended = phase == len(_RADII)
        run = state["run"] + ended
        finished = ended & (run >= (runs_of(state, self.targets) if self._targeted else 1))
        state = state | {
            "x": torch.where(per_sample(finished, state["x"]), state["best"], state["x"]),
            "phase": torch.where(ended, 0, phase),
            "run": run,
            "iteration": torch.where(over, 0, state["iteration"]),
            "finished": finished,
        }
        clean, point = state["clean"], state["point"].clone()
        point[over] = nearest_in_l1(state["best"][over], clean[over], _radius(state, threat)[over], clip=threat.clip)
        again = ended & ~finished
        if bool(again.any()):
            point[again] = self._first(clean[again], threat, state["key"][again], run[again])
        return state | {"point": point}

    @staticmethod
    def _first(clean: Images, threat: Threat, keys: Keys, runs: Labels) -> Images:
        """Draw where the runs begin."""
        radius = torch.full_like(keys, _RADII[0] * threat.eps, dtype=torch.float64)
        return nearest_in_l1(clean + noise(keys, runs, clean), clean, radius, clip=threat.clip)


def _of_phase(values: list[int], state: State) -> Labels:
    """Return the value of the phase that each sample is in."""
    return torch.tensor(values, device=state["phase"].device)[state["phase"]]


def _radius(state: State, threat: Threat) -> PerSample:
    return _of_phase(list(_RADII), state).double() * threat.eps


def _moved(x: Images, clean: Images) -> Labels:
    """Count the pixel values that differ from the clean image."""
    return (x != clean).flatten(1).sum(1)


def _note(state: State, loss: PerSample, gradient: Images, radius: PerSample) -> State:
    """Take in what was learned at `point`; at the first point of a phase, forget everything before."""
    first, point = state["iteration"] == 0, state["point"]
    better = first | (loss > state["best_loss"])
    return state | {
        "best": torch.where(per_sample(better, point), point, state["best"]),
        "best_gradient": torch.where(per_sample(better, point), gradient, state["best_gradient"]),
        "best_loss": torch.where(better, loss, state["best_loss"]),
        "step_size": torch.where(first, radius, state["step_size"]),
        "moved": torch.where(first, _moved(point, state["clean"]), state["moved"]),
    }


def _step(state: State, back: Mask, gradient: Images) -> Images:
    """Step from `point`, or where `back` is true from the best point, along the largest entries of the gradient."""
    back = per_sample(back, gradient)
    point = torch.where(back, state["best"], state["point"])
    flat = torch.where(back, state["best_gradient"], gradient).flatten(1)
    count = flat.shape[1]
    rank = ((1 - state["moved"].double() / count / 1.5) * count).long().clamp(0, count - 1)
    least = flat.abs().sort(dim=1).values.gather(1, rank[:, None])
    chosen = flat.sign() * (flat.abs() >= least)
    length = state["step_size"][:, None] / chosen.abs().sum(1, keepdim=True).clamp_min(1)
    return point + (length * chosen).view(point.shape).to(point)


ATTACK = APGDL1
