"""Auto-PGD for L1: sparse steps in L1 balls that shrink to the radius eps, projected onto the ball within the box.

Croce & Hein (2021), "Mind the box: l1-APGD for sparse adversarial attacks on image classifiers", arXiv:2103.01208,
sections 2 (projection) and 3 (steps, adaptive sparsity, radii).
"""

import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._l1 import nearest_in_l1
from robustbench_kpca.attacks._targets import aim, require_one_target, target_of_run
from robustbench_kpca.attacks._targets import runs_of as number_of_targets
from robustbench_kpca.attacks.shared.ball import require_norm
from robustbench_kpca.attacks.shared.draws import noise
from robustbench_kpca.attacks.shared.losses import LossName, objective
from robustbench_kpca.attacks.shared.rows import choose, constant
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels, Mask, PerSample, Query, State

_RADII = (3, 2, 1)  # radii of the three phases of a run, in units of eps
_SHRINK, _LEAST_STEP = 1.5, 0.1
_SPARSER = 0.95  # the step size is reset if the perturbation has become this much sparser


@dataclass(frozen=True, config=FORBID)
class APGDL1:
    """One run of `steps` iterations or, targeted, one for each of the `targets` strongest wrong classes in turn.

    A run has three phases: ceil(0.3 `steps`) iterations in the ball of radius r = 3 eps, the same number with r = 2
    eps, and the rest with r = eps. The first phase begins at Gaussian noise; each later phase begins at the projected
    point of highest loss of the previous phase. With n the number of pixel values, Proj the projection onto the
    intersection of ball and box, and k the fraction of the n values to change,

        x_{t+1} = Proj(x_t + eta s / ||s||_1),   s_i = sign(g_i) where |g_i| is among the n k largest, else 0,

    where g is the gradient of the loss. k is two thirds of the fraction of pixel values in which the best point differs
    from the clean image, and eta = r at first. k is updated every max(0.04 of the phase's iterations, 1) iterations. If
    that fraction is then less than 0.95 of its value at the last update, eta is reset to r and the search continues
    from the best point; otherwise eta is divided by 1.5, down to r / 10.

    Iterates of the first two phases usually lie outside the allowed ball; they count only if they lie inside it. The
    proposal `x` is the clean image until the last phase ends, then the best point of that phase. Losses and targets are
    those of `APGD`; the authors' ensemble uses `ce` with 5 restarts and `dlr_targeted` with 5 targets. `steps` is at
    least 5, so that no phase is empty.

    A sample that is never misclassified costs `steps` + 3 forward and backward passes per run, 1 forward pass for the
    loop's check, and, if targeted, 1 forward pass for the clean logits.
    """

    version: ClassVar[int] = 1
    most_passes: ClassVar[tuple[str, str]] = (
        "backwards + 1 + loss.endswith('_targeted')",
        "(min(targets, classes - 1) if loss.endswith('_targeted') else 1) * (steps + 3)",
    )
    steps: Annotated[int, Field(ge=5, strict=True)]
    loss: LossName
    targets: Annotated[int, Field(ge=1, strict=True)]

    def __post_init__(self) -> None:
        require_one_target(self.loss, self.targets)

    @property
    def _targeted(self) -> bool:
        return self.loss.endswith("_targeted")

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Draw the first point. `classes` is 0 until the first `step` queries the model for the targets.

        Raises:
            BadInputError: the norm is not L1.
        """
        require_norm(threat, "apgd_l1", "l1")
        count = torch.zeros_like(keys)
        return {
            "x": x,
            "point": self._draw_start(x, threat, keys, count),
            "clean": x,
            "y": y,
            "key": keys,
            "targets": torch.zeros_like(keys)[:, None].expand(-1, self.targets),
            "classes": count,
            "run": count,
            "phase": count,
            "iteration": count,  # within the phase
            "best": x,
            "best_gradient": torch.zeros_like(x),
            "best_loss": x.new_zeros(len(x)),
            "step_size": torch.zeros_like(keys, dtype=torch.float64),  # eta
            "changed": count,  # 1.5 n k: values in which the best point differed from the clean image at the last one
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Compute the gradient at `point` and update; at the end of a phase or run, begin the next."""
        state = aim(state, query) if self._targeted else state
        x, y, target, r = state["point"], state["y"], target_of_run(state), _radius(state, threat)
        loss, g = query.gradient(x, lambda logits: objective(self.loss, logits, y, target), outside=True)
        state, restarts = self._update_sparsity(_record(state, loss.to(g.dtype), g, r), r)
        x, g = choose(restarts, state["best"], x), choose(restarts, state["best_gradient"], g)
        x_next = nearest_in_l1(x + _sparse_step(state, g), state["clean"], r, clip=threat.clip)
        return self._next_phase(state | {"point": x_next, "iteration": state["iteration"] + 1}, threat)

    def runs_of(self, state: State) -> Labels:
        """Return the number of runs of each sample: of its targets or, untargeted, 1."""
        return number_of_targets(state, self.targets) if self._targeted else torch.ones_like(state["run"])

    def begin_run(self, state: State, threat: Threat, run: Labels) -> State:
        """Draw the first point of the run with the number `run`; iteration 0 overwrites all other values."""
        x, zero = self._draw_start(state["clean"], threat, state["key"], run), torch.zeros_like(run)
        return state | {"point": x, "run": run, "phase": zero, "iteration": zero}

    def join_runs(self, earlier: State, later: State, threat: Threat) -> State:  # noqa: ARG002
        """Return `later`: a run uses nothing of the runs before it."""
        return later

    def _lengths(self) -> tuple[int, int, int]:
        """Return the number of iterations of each phase."""
        early = math.ceil(0.3 * self.steps)
        return early, early, self.steps - 2 * early

    def _update_sparsity(self, state: State, r: PerSample) -> tuple[State, Mask]:
        """Update k and eta where that is due; return the samples whose search restarts from the best point."""
        interval = _value_for_phase([max(int(0.04 * length), 1) for length in self._lengths()], state)
        due = (state["iteration"] > 0) & (state["iteration"] % interval == 0)
        changed = _count_changed(state["best"], state["clean"])
        sparser = due & (changed < _SPARSER * state["changed"])
        shorter = torch.maximum(state["step_size"] / _SHRINK, r * _LEAST_STEP)
        eta = torch.where(sparser, r, torch.where(due, shorter, state["step_size"]))
        return state | {"step_size": eta, "changed": torch.where(due, changed, state["changed"])}, sparser

    def _next_phase(self, state: State, threat: Threat) -> State:
        phase_ended = state["iteration"] > _value_for_phase(list(self._lengths()), state)
        if not bool(phase_ended.any()):
            return state
        phase = state["phase"] + phase_ended
        run_ended = phase == len(_RADII)
        run = state["run"] + run_ended
        finished = run_ended & (run >= self.runs_of(state))
        state = state | {
            "x": choose(finished, state["best"], state["x"]),
            "phase": torch.where(run_ended, 0, phase),
            "run": run,
            "iteration": torch.where(phase_ended, 0, state["iteration"]),
            "finished": finished,
        }
        clean, point = state["clean"], state["point"].clone()
        point[phase_ended] = nearest_in_l1(
            state["best"][phase_ended], clean[phase_ended], _radius(state, threat)[phase_ended], clip=threat.clip
        )
        begins = run_ended & ~finished
        if bool(begins.any()):
            point[begins] = self._draw_start(clean[begins], threat, state["key"][begins], run[begins])
        return state | {"point": point}

    @staticmethod
    def _draw_start(clean: Images, threat: Threat, keys: Keys, runs: Labels) -> Images:
        radius = torch.full_like(keys, _RADII[0] * threat.eps, dtype=torch.float64)
        return nearest_in_l1(clean + noise(keys, runs, clean), clean, radius, clip=threat.clip)


def _value_for_phase(values: list[int], state: State) -> Labels:
    """Return, for each sample, the entry of `values` for its current phase."""
    return constant(tuple(values), state["phase"].device)[state["phase"]]


def _radius(state: State, threat: Threat) -> PerSample:
    return _value_for_phase(list(_RADII), state).double() * threat.eps


def _count_changed(x: Images, clean: Images) -> Labels:
    return (x != clean).flatten(1).sum(1)


def _record(state: State, loss: PerSample, g: Images, r: PerSample) -> State:
    """Record loss and gradient at `point`; the first point of a phase overwrites all earlier values."""
    first, x = state["iteration"] == 0, state["point"]
    better = first | (loss > state["best_loss"])
    return state | {
        "best": choose(better, x, state["best"]),
        "best_gradient": choose(better, g, state["best_gradient"]),
        "best_loss": torch.where(better, loss, state["best_loss"]),
        "step_size": torch.where(first, r, state["step_size"]),
        "changed": torch.where(first, _count_changed(x, state["clean"]), state["changed"]),
    }


def _sparse_step(state: State, g: Images) -> Images:
    """Return eta s / ||s||_1, where s has the signs of the largest entries of `g`."""
    flat = g.flatten(1)
    n = flat.shape[1]
    smaller = ((1 - state["changed"].double() / n / 1.5) * n).long().clamp(0, n - 1)  # n - n k, rounded down
    threshold = flat.abs().sort(dim=1).values.gather(1, smaller[:, None])
    s = flat.sign() * (flat.abs() >= threshold)
    length = state["step_size"][:, None] / s.abs().sum(1, keepdim=True).clamp_min(1)
    return (length * s).view(g.shape).to(g)


ATTACK = APGDL1
