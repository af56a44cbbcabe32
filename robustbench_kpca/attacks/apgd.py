"""Auto-PGD: projected gradient steps with momentum that halve their own size and go back to the best point.

Croce & Hein (2020), "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free
attacks", arXiv:2003.01690, section 3 (algorithm) and 4 (DLR loss).
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._auto_steps import ascend, checkpoints, initial_state
from robustbench_kpca.attacks._targets import aim, require_one_target, target_of_run
from robustbench_kpca.attacks._targets import runs_of as number_of_targets
from robustbench_kpca.attacks.shared.ball import project, require_norm
from robustbench_kpca.attacks.shared.draws import on_sphere
from robustbench_kpca.attacks.shared.losses import LossName, objective
from robustbench_kpca.attacks.shared.rows import choose, constant
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels, Query, State


@dataclass(frozen=True, config=FORBID)
class APGD:
    """One run of `steps` iterations or, targeted, one for each of the `targets` strongest wrong classes in turn.

    The iterates x_t are those of `_auto_steps`, where Proj projects onto the ball and eta is 2 eps at first. x_0 is
    random on the sphere of radius eps, clipped to the box.

    `loss` is maximised (`shared.losses.objective`): `ce`, `dlr`, `pm` (the loss of PMA), `ce_targeted` or
    `dlr_targeted`. The ratio is replaced by cross-entropy for models with too few classes: 2 for `dlr`, 2 or 3 for
    `dlr_targeted`. Targets are the classes with the largest logits on the clean image other than the label, at most
    K - 1; `targets` is 1 for an untargeted loss. If every pixel has a label, only `ce`, `dlr` and `pm` are defined, as
    means over pixels.

    A sample that is never misclassified costs `steps` + 1 forward and backward passes per run, 1 forward pass for the
    loop's check of the last proposal (the point of highest loss of the last run), and, if targeted, 1 forward pass for
    the clean logits.
    """

    version: ClassVar[int] = 1
    most_passes: ClassVar[tuple[str, str]] = (
        "backwards + 1 + loss.endswith('_targeted')",
        "(min(targets, classes - 1) if loss.endswith('_targeted') else 1) * (steps + 1)",
    )
    steps: Annotated[int, Field(ge=1, strict=True)]
    loss: LossName
    targets: Annotated[int, Field(ge=1, strict=True)]
    rho: Annotated[float, Field(ge=0, le=1)]

    def __post_init__(self) -> None:
        require_one_target(self.loss, self.targets)

    @property
    def _targeted(self) -> bool:
        return self.loss.endswith("_targeted")

    @property
    def many_labels(self) -> bool:
        """Whether samples may have one label per pixel: only with an untargeted loss."""
        return not self._targeted

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Draw x_0. `classes` is 0 until the first `step` queries the model for the targets.

        Raises:
            BadInputError: the norm is L1; for it the authors use another algorithm, `apgd_l1`.
        """
        require_norm(threat, "apgd", "linf", "l2")
        count = torch.zeros_like(keys)
        return initial_state(x, keys) | {
            "x": on_sphere(x, threat, keys, count),
            "clean": x,
            "y": y,
            "key": keys,
            "targets": torch.zeros_like(keys)[:, None].expand(-1, self.targets),
            "classes": count,
            "run": count,
            "iteration": count,
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Compute the gradient at x_t and return the state with x_{t+1}, which may be x_0 of the next run."""
        state = aim(state, query) if self._targeted else state
        x, y, target = state["x"], state["y"], target_of_run(state)
        loss, g = query.gradient(x, lambda logits: objective(self.loss, logits, y, target))
        x_next, state = ascend(
            state,
            x,
            loss.to(g.dtype),
            g,
            eta_0=2 * threat.eps,
            window=constant(tuple(checkpoints(self.steps)), y.device)[state["iteration"]],
            rho=self.rho,
            proj=lambda x: project(x, state["clean"], threat),
            norm=threat.norm,
        )
        return self._end_run(state | {"x": x_next}, threat)

    def runs_of(self, state: State) -> Labels:
        """Return the number of runs of each sample: of its targets or, untargeted, 1."""
        return number_of_targets(state, self.targets) if self._targeted else torch.ones_like(state["run"])

    def begin_run(self, state: State, threat: Threat, run: Labels) -> State:
        """Draw x_0 of the run with the number `run`; iteration 0 overwrites all other values of earlier runs."""
        x_0 = on_sphere(state["clean"], threat, state["key"], run)
        return state | {"x": x_0, "run": run, "iteration": torch.zeros_like(run)}

    def join_runs(self, earlier: State, later: State, threat: Threat) -> State:  # noqa: ARG002
        """Return `later`: a run uses nothing of the runs before it."""
        return later

    def _end_run(self, state: State, threat: Threat) -> State:
        """Where a run has ended, draw x_0 of the next run or, after the last run, propose the best point."""
        ended = state["iteration"] > self.steps
        run = state["run"] + ended
        finished = ended & (run >= self.runs_of(state))
        x = choose(finished, state["best"], state["x"])
        begins = ended & ~finished
        if self._targeted and bool(begins.any()):
            x = x.clone()
            x[begins] = on_sphere(state["clean"][begins], threat, state["key"][begins], run[begins])
        iteration = torch.where(ended, 0, state["iteration"])
        return state | {"x": x, "run": run, "iteration": iteration, "finished": finished}


ATTACK = APGD
