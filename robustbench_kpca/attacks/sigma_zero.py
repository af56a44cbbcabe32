"""sigma-zero, an L0 attack: descend a smooth count of the changed values, and set the smallest changes to zero.

Cinà, Villani, Pintor, Schönherr, Biggio & Pelillo (2025), "sigma-zero: Gradient-based Optimization of l0-norm
Adversarial Examples", arXiv:2402.01879, algorithm 1; constants as in the authors' program.
"""

import math
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._adam import adam
from robustbench_kpca.attacks._closest import begin, misclassified, record_closest
from robustbench_kpca.attacks.shared.ball import distance, per_sample, require_norm
from robustbench_kpca.attacks.shared.losses import margin
from robustbench_kpca.protocols.scenario import Count
from robustbench_kpca.protocols.threat import Norm, Threat
from robustbench_kpca.types import Images, Keys, Labels, PerSample, Query, State

Sizes = Float[Tensor, "batch #channel height width"]
_LAST_SHARE = 0.1  # share of the learning rate at the end of its schedule


@dataclass(frozen=True, config=FORBID)
class SigmaZero:
    """delta <- clip(delta - lr_k Adam(g / ||g||_inf)), then entries with |delta_i| < tau <- 0; k = 0, ..., steps - 1.

    From delta = 0, with g the gradient of max(z_y - max_{j != y} z_j, 0) + (1/d) sum_i delta_i^2 / (delta_i^2 + sigma).
    The rate lr_k falls from `lr` to a tenth of it on a cosine schedule. tau begins at `threshold` and grows by `rise`
    lr_{k+1} where the image is misclassified, shrinks by as much where not, and stays in [0, 1].

    With `unit = "value"`, i counts the d values of the image, as published; with "pixel", its d pixels, whose delta_i
    is the length over the channels. The threat counts pixels.

    The search may leave the ball. It keeps the misclassified image of fewest pixels as `best`: the proposal `x` is that
    image if it lies in the ball, else the clean image. A sample that is never misclassified costs `steps` backward and
    `steps` + 1 forward passes. The attack is deterministic.
    """

    version: ClassVar[int] = 1
    norms: ClassVar[tuple[Norm, ...]] = ("l0",)
    most_passes: ClassVar[tuple[str, str]] = ("steps + 1", "steps")
    steps: Count
    lr: Annotated[float, Field(gt=0)]
    sigma: Annotated[float, Field(gt=0)]
    threshold: Annotated[float, Field(ge=0, le=1)]
    rise: Annotated[float, Field(ge=0)]
    unit: Literal["value", "pixel"]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin at the clean image."""
        require_norm(threat, "sigma_zero", *self.norms)
        return begin(x, y, keys) | {
            "delta": torch.zeros_like(x),
            "mean": torch.zeros_like(x),
            "square": torch.zeros_like(x),
            "tau": torch.full_like(x[:, 0, 0, 0], self.threshold),
            "step": torch.zeros_like(keys),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Evaluate the image, then take a step and set small changes to zero."""
        clean, y, step, delta = state["clean"], state["y"], state["step"], state["delta"]
        at = clean + delta
        value, gradient = query.gradient(at, lambda logits: margin(logits, y), outside=True)
        broken = misclassified(value)
        changed_pixels = distance(at, clean, "l0")
        state = record_closest(state, broken & (changed_pixels < state["best_distance"]), at, changed_pixels, threat)
        gradient = torch.where(per_sample(broken, delta), 0, gradient) + self._of_the_count(delta)
        gradient = gradient / per_sample(gradient.flatten(1).abs().amax(1).clamp_min(1e-12), gradient)
        change, mean, square = adam(gradient, state["mean"], state["square"], step, 1.0)
        moved = (clean + delta - per_sample(self._rate(step, delta), delta) * change).clamp(0, 1) - clean
        tau = (state["tau"] + torch.where(broken, 1, -1) * self.rise * self._rate(step + 1, delta)).clamp(0, 1)
        large = self._size(moved).sqrt() >= per_sample(tau, moved)
        return state | {
            "delta": torch.where(large, moved, 0),
            "mean": mean,
            "square": square,
            "tau": tau,
            "step": step + 1,
            "finished": step + 1 >= self.steps,
        }

    def _rate(self, step: Labels, like: Images) -> PerSample:
        cosine = (1 + torch.cos(math.pi * step.double() / self.steps)) / 2
        return (self.lr * (_LAST_SHARE + (1 - _LAST_SHARE) * cosine)).to(like.dtype)

    def _size(self, delta: Images) -> Sizes:
        """Return the squares of what is counted, to be used for every channel."""
        return delta.square() if self.unit == "value" else delta.square().sum(1, keepdim=True)

    def _of_the_count(self, delta: Images) -> Images:
        """Return the gradient of the smooth count."""
        size = self._size(delta)
        return 2 * delta * self.sigma / (size + self.sigma).square() / size[0].numel()


ATTACK = SigmaZero
