"""MALT: Auto-PGD towards the classes whose linearised boundaries are closest to the clean image.

Melamed, Yehudai & Shamir (2024), "MALT Powers Up Adversarial Attacks", arXiv:2407.02240.
"""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._linearised import boundary_distance, linearise
from robustbench_kpca.attacks._targets import aimed, unaimed
from robustbench_kpca.attacks.apgd import APGD
from robustbench_kpca.attacks.shared.ball import require_norm
from robustbench_kpca.attacks.shared.losses import runners_up
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels, Query, State


@dataclass(frozen=True, config=FORBID)
class MALT:
    """Targeted Auto-PGD (`apgd`), one run of `steps` iterations for each of the `targets` classes closest to x.

    The runs are in ascending order of

        (z_y - z_t) / ||grad_x (z_y - z_t)||_q      at the clean image x.

    That is the distance from x to the boundary with class t if the logits were linear. The norm is the dual of the
    ball's, so q = 1 in L-infinity; the paper writes the Euclidean norm. Only the `candidates` wrong classes with the
    largest logits are ranked, which costs one gradient for each; at most K - 1. Classes whose gradient vanishes come
    last, in the order of their logits.

    `loss` and `rho` are those of `apgd`. A sample that is never misclassified costs, beyond `apgd` with as many
    targets, `candidates` forward and backward passes.
    """

    version: ClassVar[int] = 1
    most_passes: ClassVar[tuple[str, str]] = (
        "backwards + 1 + loss.endswith('_targeted')",
        "(min(targets, classes - 1) if loss.endswith('_targeted') else 1) * (steps + 1) + min(candidates, classes - 1)",
    )
    steps: Annotated[int, Field(ge=1, strict=True)]
    loss: Literal["ce_targeted", "dlr_targeted"]
    targets: Annotated[int, Field(ge=1, strict=True)]
    candidates: Annotated[int, Field(ge=1, strict=True)]
    rho: Annotated[float, Field(ge=0, le=1)]

    def __post_init__(self) -> None:
        if self.candidates < self.targets:
            raise BadInputError(
                f"candidates = {self.candidates} with targets = {self.targets}", expected="at least as many candidates"
            )

    @property
    def _runs(self) -> APGD:
        """The attack whose targets are chosen here."""
        return APGD(steps=self.steps, loss=self.loss, targets=self.targets, rho=self.rho)

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Draw x_0. `classes` is 0 until the first `step` chooses the targets.

        Raises:
            BadInputError: the norm is L1, or there is a target.
        """
        require_norm(threat, "malt", "linf", "l2")
        return self._runs.start(x, y, threat, keys)

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Take a step of Auto-PGD; choose the targets before the first."""
        return self._runs.step(self._choose(state, threat, query), threat, query)

    def runs_of(self, state: State) -> Labels:
        """Return the number of targets."""
        return self._runs.runs_of(state)

    def begin_run(self, state: State, threat: Threat, run: Labels) -> State:
        """Begin as `apgd` does."""
        return self._runs.begin_run(state, threat, run)

    def join_runs(self, earlier: State, later: State, threat: Threat) -> State:
        """Return the later states: a run keeps nothing of those before it."""
        return self._runs.join_runs(earlier, later, threat)

    def _choose(self, state: State, threat: Threat, query: Query) -> State:
        """Set `targets` and `classes` of the samples whose `classes` is still 0."""
        new = unaimed(state)
        if new is None:
            return state
        rows, clean, y = query.rows(new), state["clean"][new], state["y"][new]
        logits = rows.logits(clean)
        class_count = logits.shape[1]
        ranked = runners_up(logits, y, min(self.candidates, class_count - 1))
        planes = linearise(clean, y, ranked.unbind(1), rows)
        reach = torch.stack([boundary_distance(value, normal, threat.norm) for value, normal in planes], 1)
        order = reach.argsort(dim=1, stable=True)[:, torch.arange(self.targets).clamp(max=ranked.shape[1] - 1)]
        targets, classes = state["targets"].clone(), state["classes"].clone()
        targets[new], classes[new] = ranked.gather(1, order), class_count
        return aimed(state, targets, classes)


ATTACK = MALT
