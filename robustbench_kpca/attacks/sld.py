"""Sparse L1 descent (SLD): each step changes the largest gradient entries equally, then projects onto the L1 ball.

Tramèr & Boneh (2019), "Adversarial Training and Robustness for Multiple Perturbations", arXiv:1904.13000, appendix A
(SLIDE); CleverHans calls it SparseL1Descent.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks.shared.ball import into_box, project, rescale
from robustbench_kpca.attacks.shared.one_gradient import OneGradient
from robustbench_kpca.protocols.threat import Norm, StepSize, Threat, parse_step
from robustbench_kpca.types import Images, State


@dataclass(frozen=True, config=FORBID)
class SLD(OneGradient):
    """x_{t+1} = Proj(x_t + step_size * e / ||e||_1), e_i = sign(g_i) where |g_i| >= P_sparsity(|g|), else 0.

    g = grad_x CE(f(x_t), y), and P_sparsity is its percentile: the floor(sparsity / 100 * d)-th smallest of d values,
    at least the first, as in CleverHans. With `skip_clipped`, gradient entries that point out of the box at
    pixels already on its edge are set to zero, so that the step uses only pixels that can move. `step_size` is an L1
    length, absolute or relative (`"0.1 eps"`). `x_0` is the clean image or, with `random_start`, uniform in the ball.

    Proj depends on `projection`. `euclidean`: the Euclidean projection onto the L1 ball, then the box, as in the paper
    and CleverHans' first version. `rescale`: the box, then x' - x scaled to L1 length eps if it is longer, then the box
    again, as in CleverHans' port to PyTorch. (The port also lets entries of a gradient that are zero share the step,
    which makes it shorter where fewer than 1 - sparsity / 100 of them are not; ours gives them nothing.)

    A sample that is never misclassified costs `steps` backward and `steps` + 1 forward passes per restart.
    """

    version: ClassVar[int] = 1
    norms: ClassVar[tuple[Norm, ...]] = ("l1",)
    most_passes: ClassVar[tuple[str, str]] = ("steps + 1", "steps")
    steps: Annotated[int, Field(ge=1, strict=True)]
    step_size: StepSize
    sparsity: Annotated[float, Field(ge=0, lt=100)]
    skip_clipped: StrictBool
    random_start: StrictBool
    projection: Literal["euclidean", "rescale"]

    def propose(self, x: Images, gradient: Images, state: State, threat: Threat) -> Images:  # noqa: ARG002
        """Share one step among the largest entries of the gradient."""
        if self.skip_clipped and threat.clip:  # without a box no bound limits the step
            blocked = ((x <= 0) & (gradient < 0)) | ((x >= 1) & (gradient > 0))
            gradient = gradient.masked_fill(blocked, 0)
        return x + parse_step(self.step_size, threat.eps) * self._direction(gradient)

    def into_ball(self, x: Images, clean: Images, threat: Threat) -> Images:
        """Project as `projection` says."""
        if self.projection == "euclidean":
            return project(x, clean, threat)
        return rescale(into_box(x, threat), clean, threat)

    def _direction(self, gradient: Images) -> Images:
        flat = gradient.flatten(1)
        rank = max(1, int(self.sparsity / 100 * flat.shape[1]))
        least = flat.abs().kthvalue(rank, dim=1, keepdim=True).values
        chosen = flat.sign() * (flat.abs() >= least)
        return (chosen / chosen.abs().sum(1, keepdim=True).clamp_min(1)).view(gradient.shape)


ATTACK = SLD
