"""Samples on their way through the stages of an attack: under it, waiting for a place, or claimed to be broken."""

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from robustbench_kpca.attack_loop.success import Answer
from robustbench_kpca.types import Attack, State

Confirmed: TypeAlias = tuple[Tensor, float, Answer, str]
"""Image, margin and prediction, as a plain forward pass answered, and the attack that proposed the image."""


@dataclass
class Sample:
    """One image on its way through the stages, with what is known about it. Its tensors have no batch axis.

    Attributes:
        clean: the image as attacks are given it.
        target: the class that attacks are to leave or, in targeted attacks, to reach.
        before: what made the model wrong before any attack; "" where it was right.
        worst: the image of lowest score found (or the last one, where the protocol judges that), found by `worst_by`.
        worst_margin: its score, as `Success.judge` gives it.
        confirmed: an image that a plain forward pass confirmed: a success or, where success is graded, the worst one of
            the stage.
        given: where success is graded, what every stage begins with.
        found: where success is graded, the worst image of each stage, by its number from 1 on.

    """

    index: int
    id: str
    label: Answer
    clean: Tensor
    clean_prediction: Answer
    target: Answer
    before: str
    worst: Tensor
    worst_margin: float
    prediction: Answer
    worst_by: str = ""
    confirmed: Confirmed | None = None
    stage: int = 0
    restart: int = 0
    forwards: int = 0
    backwards: int = 0
    retracted: int = 0
    nonfinite: int = 0
    zero_gradients: int = 0
    broken_by: str = ""
    given: Confirmed | None = None
    found: dict[int, Confirmed] = field(default_factory=dict)

    def take(self, which: Confirmed) -> None:
        """Make this the worst image."""
        self.worst, self.worst_margin, self.prediction, self.worst_by = which


@dataclass
class Claim:
    """An image to be answered by a plain forward pass.

    `state` is where the search stood if it looked broken there; `final`: no search follows, this decides the sample.
    """

    sample: Sample
    image: Tensor
    state: State | None = None
    final: bool = False


@dataclass
class Pool:
    """The samples of one stage: those under attack (row i of `state` is `active[i]`) and those waiting for a place.

    A sample waits with the state to go on from, or with None to be started. `state` holds the attack's own tensors
    and, under `loop.*`, the loop's.
    """

    name: str
    attack: Attack
    restarts: int
    active: list[Sample] = field(default_factory=list)
    state: State = field(default_factory=dict)
    waiting: deque[tuple[Sample, State | None]] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self.active) + len(self.waiting)

    def append(self, samples: list[Sample], state: State) -> None:
        """Add rows."""
        self.state = {key: torch.cat([self.state[key], rows]) for key, rows in state.items()} if self.active else state
        self.active = self.active + samples

    def keep(self, mask: Tensor) -> None:
        """Drop the rows where `mask` is false."""
        if not bool(mask.all()):
            self.active = [sample for sample, kept in zip(self.active, mask.tolist(), strict=True) if kept]
            self.state = {key: rows[mask] for key, rows in self.state.items()}
