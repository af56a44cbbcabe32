"""SPSA: estimate the gradient of the margin by finite differences along random sign vectors; descend it with Adam.

Uesato, O'Donoghue, van den Oord & Kohli (2018), "Adversarial Risk and the Dangers of Evaluating Against Weak Attacks",
arXiv:1802.05666, algorithm 1; the estimator is Spall's (1992).
"""

from typing import Annotated

import torch
from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass

from robustbench_kpca.attacks._adam import adam
from robustbench_kpca.attacks.shared.ball import into_box, per_sample, project, uniform_in_ball
from robustbench_kpca.attacks.shared.draws import signs
from robustbench_kpca.attacks.shared.losses import margin
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.strict import FORBID
from robustbench_kpca.types import Images, Keys, Labels, Query, State


@dataclass(frozen=True, config=FORBID)
class SPSA:
    """x_{t+1} = Proj(x_t - Adam(g_t)), g_t = mean_i [J(x_t + delta v_i) - J(x_t - delta v_i)] / (2 delta) v_i.

    J = z_y - max_{k != y} z_k, and v_i are `samples` / 2 images of independent random signs. `samples` thus counts
    model evaluations per step. (So does CleverHans' first version; with its port to PyTorch and with torchattacks,
    "128 samples" are 128 pairs, 256 here.) Probes may leave the ball by delta; they are clipped to the box, which
    halves the estimate at pixels on its edge. `x_0` is the clean image or, with `random_start`, uniform in the ball.

    A sample that is never misclassified costs `steps` * (`samples` + 1) + 1 forward passes per restart. Every iterate
    is evaluated at once: if it is misclassified, the next `samples` passes are saved.
    """

    steps: Annotated[int, Field(ge=1, strict=True)]
    samples: Annotated[int, Field(ge=2, multiple_of=2, strict=True)]
    delta: Annotated[float, Field(gt=0)]
    lr: Annotated[float, Field(gt=0)]
    random_start: StrictBool

    def most_passes(self, classes: int) -> tuple[int, int]:  # noqa: ARG002
        """Return forward and backward passes per restart of a sample that is never misclassified."""
        return self.steps * (self.samples + 1) + 1, 0

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Draw x_0."""
        return {
            "x": uniform_in_ball(x, threat, keys) if self.random_start else x,
            "clean": x,
            "y": y,
            "key": keys,
            "mean": torch.zeros_like(x),
            "square": torch.zeros_like(x),
            "step": torch.zeros_like(keys),
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Estimate the gradient, take an Adam step, project, and evaluate the new iterate."""
        gradient = self._estimate(state, threat, query)
        move, mean, square = adam(gradient, state["mean"], state["square"], state["step"], self.lr)
        x = project(state["x"] - move, state["clean"], threat)
        query.logits(x)
        step = state["step"] + 1
        return state | {"x": x, "mean": mean, "square": square, "step": step, "finished": step >= self.steps}

    def _estimate(self, state: State, threat: Threat, query: Query) -> Images:
        x, y, pairs = state["x"], state["y"], self.samples // 2
        total = torch.zeros_like(x)
        for pair in range(pairs):
            v = signs(state["key"], state["step"] * pairs + pair + 1, x)
            sides = (into_box(x + side * v, threat) for side in (self.delta, -self.delta))
            ahead, behind = (margin(query.logits(side, outside=True), y) for side in sides)
            total = total + per_sample(threat.sign * (ahead - behind).to(x.dtype), x) * v
        return total / (2 * self.delta * pairs)


ATTACK = SPSA
