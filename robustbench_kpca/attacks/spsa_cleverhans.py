"""SPSA as CleverHans 4.0.0 runs it in PyTorch: the gradient is estimated around twice the image, not at the iterate.

Papernot et al. (2018), "Technical Report on the CleverHans v2.1.0 Adversarial Examples Library", arXiv:1610.00768;
cleverhans/torch/attacks/spsa.py. For literal protocols only: `spsa` is the attack of Uesato et al. (2018).
"""

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._spsa import begin, descend, estimate
from robustbench_kpca.attacks.shared.ball import require_norm, uniform_in_ball
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels, Query, State


@dataclass(frozen=True, config=FORBID)
class SPSAOfCleverHans:
    """x_{t+1} = Proj(x_t - Adam(g_t)), g_t = mean_i [J(2 x + delta v_i) - J(2 x - delta v_i)] / (2 delta) v_i.

    As `spsa` with a random start, but the probes lie around twice the clean image x. The library adds the image to a
    probe that contains it already (its issue 1249), so that its search does not see where it stands. `samples` counts
    answers of the model in a step: the library's `spsa_samples` = 128 are 128 pairs, so 256 here.

    The library does not clip the probes, and 2 x leaves the box, so the threat model must not clip. L-infinity only.
    A sample costs `steps` * (`samples` + 1) + 1 forward passes per restart.
    """

    version: ClassVar[int] = 1
    most_passes: ClassVar[tuple[str, str]] = ("steps * (samples + 1) + 1", "0")
    steps: Annotated[int, Field(ge=1, strict=True)]
    samples: Annotated[int, Field(ge=2, multiple_of=2, strict=True)]
    delta: Annotated[float, Field(gt=0)]
    lr: Annotated[float, Field(gt=0)]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Draw x_0, uniform in the ball.

        Raises:
            BadInputError: the norm is not L-infinity, or the threat model clips to [0, 1].
        """
        require_norm(threat, "spsa_cleverhans", "linf")
        if threat.clip:
            raise BadInputError("attack 'spsa_cleverhans' with clipping", expected="clip = false", fix="use 'spsa'")
        return begin(uniform_in_ball(x, threat, keys), x, y, keys)

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Estimate the gradient around twice the clean image, take an Adam step, project, and evaluate the iterate."""
        gradient = estimate(2 * state["clean"], state, self.samples, self.delta, threat=threat, query=query)
        return descend(state, gradient, self.lr, self.steps, threat=threat, query=query)


ATTACK = SPSAOfCleverHans
