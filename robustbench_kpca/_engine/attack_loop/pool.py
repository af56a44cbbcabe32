"""Data structures of the attack loop: samples, the pool of each stage, and images that wait for confirmation."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from robustbench_kpca._engine.attack_loop.foresight import Spread
from robustbench_kpca._engine.attack_loop.query import COUNTS, Tally
from robustbench_kpca._engine.attack_loop.success import Answer
from robustbench_kpca.types import Attack, State

Confirmed: TypeAlias = tuple[Tensor, float, Answer, int, str]
"""Image; its margin, prediction and rank in a forward pass without gradients; the attack that proposed the image."""


@dataclass
class Sample:
    """One image under attack, with all that is known about it. Its tensors have no batch axis.

    Attributes:
        clean: the image that attacks start from: the clean image, clipped if the protocol says so.
        target: the class to move away from: the label, or the class that the model predicted.
        before: why the model was wrong before any attack (`clean` or `clamp`); "" if it was right.
        worst: the image of lowest score so far (with policy `last`, the last image), found by the attack `worst_by`.
        worst_margin: its score, see `Success.judge`.
        prediction: the answer to `worst`.
        rank: rank of the true label in that answer, see `Success.rank`.
        confirmed: an image confirmed by a forward pass without gradients: a success or, if success is graded, the worst
            image of the stage.
        unrounded_by: `broken_by` before the image that decides was rounded to 8 bits; None without `storage`.
        given: if success is graded, the starting point of every stage.
        found: if success is graded, the worst image of each stage; the key is the number of the stage, from 1.
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
    rank: int
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
    unrounded_by: str | None = None
    given: Confirmed | None = None
    found: dict[int, Confirmed] = field(default_factory=dict)

    def take(self, which: Confirmed) -> None:
        """Set the worst image, its margin, prediction and rank, and the attack that found it."""
        self.worst, self.worst_margin, self.prediction, self.rank, self.worst_by = which


@dataclass
class Candidate:
    """An image that waits for a confirming forward pass, without gradients.

    Attributes:
        sample: the sample it belongs to.
        image: the image.
        state: the state of the attack, if the image was misclassified during the search: the search can resume there.
        final: whether this image decides the sample; no search follows.
    """

    sample: Sample
    image: Tensor
    state: State | None = None
    final: bool = False


@dataclass
class Run:
    """A later run of a sample, begun before its turn; it counts its own passes.

    Attributes:
        sample: the sample it belongs to.
        number: number of the run.
        state: its row of state once it is over; until then it has a row of the pool.
        broken: whether it ended with an image that looked broken.
    """

    sample: Sample
    number: int
    forwards: int = 0
    backwards: int = 0
    nonfinite: int = 0
    zero_gradients: int = 0
    state: State | None = None
    broken: bool = False


@dataclass
class Pool:
    """The samples of one stage: those under attack (row i of `state` is `active[i]`) and those waiting for a free row.

    Rows without a sample of their own may hold later runs of one.

    A waiting sample has a state to resume from, or None if its attack has not started. `state` holds the tensors of the
    attack and, with names `loop.*`, those of the engine. `later` holds the runs begun before their turn: index of the
    sample -> number of the run -> run. With `one_by_one` none are begun; with
    `all_begun` there is none that could be, until rows come or go. `spread` is for `foresight.Layout`.
    `steps` counts the steps so far, and `rows` is the number of rows in the last one.
    """

    name: str
    attack: Attack
    restarts: int
    active: list[Sample | Run] = field(default_factory=list)
    state: State = field(default_factory=dict)
    waiting: deque[tuple[Sample, State | None]] = field(default_factory=deque)
    later: dict[int, dict[int, Run]] = field(default_factory=dict)
    one_by_one: bool = False
    all_begun: bool = False
    spent: Tensor | None = None
    steps: int = 0
    rows: int = 0
    spread: Spread = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.active) + len(self.waiting)

    def spend(self, tally: Tally) -> None:
        """Count what every row spent and met; `book` adds it to the samples."""
        self.spent = tally.counts if self.spent is None else self.spent + tally.counts

    def book(self) -> None:
        """Add to the samples what their rows spent since the last time. Due before rows come, go or are saved."""
        lines = [] if self.spent is None else self.spent.tolist()
        for count, line in zip(COUNTS, lines, strict=False):
            for entry, number in zip(self.active, line, strict=True):
                setattr(entry, count, getattr(entry, count) + number)
        self.spent = None

    def append(self, samples: Sequence[Sample | Run], state: State) -> None:
        """Add samples, or later runs of some, and their rows of state."""
        self.book()
        self.all_begun = self.one_by_one
        self.state = {key: torch.cat([self.state[key], rows]) for key, rows in state.items()} if self.active else state
        self.active = [*self.active, *samples]

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows; drop the others."""
        if len(rows) < len(self.active):
            self.book()
            self.all_begun = self.one_by_one
            self.active = [self.active[row] for row in rows]
            numbers = torch.tensor(rows, dtype=torch.int64).to(self.state["finished"].device, non_blocking=True)
            self.state = {key: values.index_select(0, numbers) for key, values in self.state.items()}
