"""The descent of C&W: Adam in tanh space on the distance and a weighted margin; subclasses choose the weight."""

from abc import ABC, abstractmethod
from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._adam import adam
from robustbench_kpca.attacks._closest import begin, record_closest
from robustbench_kpca.attacks.shared.ball import distance, per_sample, require_box, require_norm
from robustbench_kpca.attacks.shared.losses import margin
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels, PerSample, Query, State


@dataclass(frozen=True, config=FORBID)
class CarliniWagner(ABC):
    """Minimise ||x' - x||_2^2 + c max(z_y - max_{k != y} z_k + confidence, 0) over w, x' = 1/2 + half tanh(w)."""

    steps: Annotated[int, Field(ge=1, strict=True)]
    lr: Annotated[float, Field(gt=0)]
    binary_steps: Annotated[int, Field(ge=1, strict=True)]
    initial_const: Annotated[float, Field(gt=0)]
    confidence: Annotated[float, Field(ge=0)]

    @abstractmethod
    def half(self, x: Images) -> Images:
        """Return half the range of every pixel, 1/2 or more."""

    @abstractmethod
    def into_tanh_space(self, x: Images) -> Images:
        """Return the w at which the search begins."""

    @abstractmethod
    def counters(self, keys: Keys) -> State:
        """Return the initial values of the other entries of a sample's state."""

    @abstractmethod
    def next_const(self, state: State, delta_norm: PerSample, gap: PerSample) -> State:
        """Return the entries that change after an iteration: the next c, and whether the search is over.

        Args:
            state: after the iteration, but for `iteration`.
            delta_norm: L2 distance of the image shown.
            gap: its margin plus `confidence`; negative where it is misclassified.
        """

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Enter tanh space.

        Raises:
            BadInputError: the norm is not L2, or the threat model does not clip to [0, 1].
        """
        name = type(self).__module__.rpartition(".")[2]
        require_norm(threat, name, "l2")
        require_box(threat, name)
        return begin(x, y, keys) | {
            "w": self.into_tanh_space(x),
            "mean": torch.zeros_like(x),
            "square": torch.zeros_like(x),
            "const": torch.zeros_like(keys, dtype=torch.float64) + self.initial_const,
            "succeeded": torch.zeros_like(keys, dtype=torch.bool),  # whether this run has found a misclassified image
            "iteration": torch.zeros_like(keys),
            **self.counters(keys),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Take one iteration of Adam; at the end of a run, choose the next c."""
        clean, y, tanh = state["clean"], state["y"], state["w"].tanh()
        half = self.half(clean)
        at = (half * tanh).add_(0.5).clamp_(0, 1)
        margins, gradient = query.gradient(at, lambda logits: margin(logits, y), outside=True)
        delta_norm, gap = distance(at, clean, "l2"), margins.double() + self.confidence
        weight = torch.where(gap > 0, state["const"], 0).to(clean.dtype)
        slope = (per_sample(weight, clean) * gradient).add_((at - clean).mul_(2))
        slope = slope.mul_(half).mul_(1 - tanh.square_())
        move, mean, square = adam(slope, state["mean"], state["square"], state["iteration"], self.lr)
        closer = (gap < 0) & (delta_norm < state["best_distance"])
        state = record_closest(state, closer, at, delta_norm, threat) | {
            "w": state["w"] - move,
            "mean": mean,
            "square": square,
            "succeeded": state["succeeded"] | (gap < 0),
        }
        return state | self.next_const(state, delta_norm, gap)
