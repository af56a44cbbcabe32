"""The frame of attacks that take one gradient a step: where they begin, what they ask, how they stay in the ball."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch

from robustbench_kpca.attacks.shared.ball import project, require_norm, uniform_in_ball
from robustbench_kpca.attacks.shared.losses import cross_entropy
from robustbench_kpca.protocols.threat import COUNTED, Norm, Threat
from robustbench_kpca.types import Images, Keys, Labels, Logits, PerSample, Query, State


class OneGradient(ABC):
    """x_{t+1} = into_ball(propose(x_t, grad_x loss(f(x_t), y))), t = 0, ..., steps - 1.

    A subclass is a frozen dataclass with a field or constant `steps`; it writes `propose`. `x_0` is the clean image or,
    with a field `random_start` that is true, uniform in the ball. A sample that is never misclassified costs `steps`
    backward and `steps` + 1 forward passes per restart (the last is the loop's check of x_steps).

    In L1, one step of steepest ascent moves one number, and clipping undoes it, so it is not among the `norms`.
    """

    norms: ClassVar[tuple[Norm, ...]] = ("linf", "l2", *COUNTED)
    most_passes: ClassVar[tuple[str, str]] = ("steps + 1", "steps")
    steps: Any  # a field, or a constant of the class

    @abstractmethod
    def propose(self, x: Images, gradient: Images, state: State, threat: Threat) -> Images:
        """Return the next image, which need not lie in the ball.

        Args:
            x: the current image.
            gradient: gradient of the loss at `x`.
            state: the samples' own tensors: `clean`, `y`, `step` (from 0) and those of `memory`, which may be replaced.
            threat: norm and radius of the ball.
        """

    def loss(self, logits: Logits, state: State) -> PerSample:
        """Return what the attacker increases: by default the cross-entropy."""
        return cross_entropy(logits, state["y"])

    def memory(self, x: Images, threat: Threat) -> State:  # noqa: ARG002
        """Return the initial values of what else a sample keeps from step to step."""
        return {}

    def into_ball(self, x: Images, clean: Images, threat: Threat) -> Images:
        """Return the proposal inside ball and box."""
        return project(x, clean, threat)

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Draw x_0.

        Raises:
            BadInputError: the norm is none of `norms`.
        """
        require_norm(threat, type(self).__name__.lower(), *self.norms)
        return {
            "x": uniform_in_ball(x, threat, keys) if getattr(self, "random_start", False) else x,
            "clean": x,
            "y": y,
            "step": torch.zeros_like(keys),
            "finished": torch.zeros_like(keys, dtype=torch.bool),
            **self.memory(x, threat),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Ask for the gradient and propose the next image."""
        _, gradient = query.gradient(state["x"], lambda logits: self.loss(logits, state))
        new, step = dict(state), state["step"] + 1
        moved = self.propose(state["x"], gradient, new, threat)
        x = self.into_ball(moved, state["clean"], threat)
        return new | {"x": x, "step": step, "finished": step >= self.steps}
