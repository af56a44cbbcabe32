"""SPSA: estimate the gradient of the margin by finite differences along random sign vectors; descend it with Adam.

Uesato, O'Donoghue, van den Oord & Kohli (2018), "Adversarial Risk and the Dangers of Evaluating Against Weak Attacks",
arXiv:1802.05666, algorithm 1; the estimator is Spall's (1992).
"""

from typing import Annotated, ClassVar

from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._spsa import begin, descend, estimate
from robustbench_kpca.attacks.shared.ball import uniform_in_ball
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels, Query, State


@dataclass(frozen=True, config=FORBID)
class SPSA:
    """x_{t+1} = Proj(x_t - Adam(g_t)), g_t = mean_i [J(x_t + delta v_i) - J(x_t - delta v_i)] / (2 delta) v_i.

    J = z_y - max_{k != y} z_k, and v_i are `samples` / 2 images of independent random signs. `samples` thus counts
    answers of the model in a step. (So does CleverHans' first version; in its port to PyTorch and in torchattacks,
    "128 samples" are 128 pairs: write 256 here.) Probes may leave the ball by delta; they are clipped to the box, which
    halves the estimate at pixels on its edge. `x_0` is the clean image or, with `random_start`, uniform in the ball.

    A sample that is never misclassified costs `steps` * (`samples` + 1) + 1 forward passes per restart. Every iterate
    is evaluated at once: if it is misclassified, the next `samples` passes are saved.
    """

    version: ClassVar[int] = 1
    most_passes: ClassVar[tuple[str, str]] = ("steps * (samples + 1) + 1", "0")
    steps: Annotated[int, Field(ge=1, strict=True)]
    samples: Annotated[int, Field(ge=2, multiple_of=2, strict=True)]
    delta: Annotated[float, Field(gt=0)]
    lr: Annotated[float, Field(gt=0)]
    random_start: StrictBool

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Draw x_0."""
        return begin(uniform_in_ball(x, threat, keys) if self.random_start else x, x, y, keys)

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Estimate the gradient, take an Adam step, project, and evaluate the new iterate."""
        gradient = estimate(state["x"], state, self.samples, self.delta, threat=threat, query=query)
        return descend(state, gradient, self.lr, self.steps, threat=threat, query=query)


ATTACK = SPSA
