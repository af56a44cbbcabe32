"""Outcomes of a language model: of every position of a text how probable the model found the word that stands there."""

from collections import deque
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from robustbench_kpca._engine.attack_loop.query import check_clean
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca._engine.inference.runner import Presentation, Runner, call
from robustbench_kpca.data.text import Stream, Text
from robustbench_kpca.protocols.scenario import Scenario, cells_of
from robustbench_kpca.records.outcomes import Column, Outcomes
from robustbench_kpca.tasks.language import TASK
from robustbench_kpca.tasks.language.windows import windows_of
from robustbench_kpca.tasks.results import ModelResults
from robustbench_kpca.types import Images, Labels, Logits

Shown = tuple[Stream, NDArray[np.bool_]]
"""A text as a model is shown it, and which of its words a corruption put there; both of shape (words,)."""
_KINDS = {"swapped": np.int8, "nll": np.float32}


def _last(model: nn.Module, x: Images) -> Logits:
    answer: Logits = model(x, last=True)
    return answer


EVERY_PLACE = Presentation(
    call,
    lambda logits, x: logits.ndim == 4 and len(logits) == len(x) and logits.shape[2:] == x.shape[2:],
    expected="logits of the next word at every place: (batch, vocabulary, 1, length)",
    fix="choose a language model",
)
LAST_PLACE = replace(
    EVERY_PLACE,
    show=_last,
    fits=lambda logits, x: logits.ndim == 4 and logits.shape[::2] == (len(x), 1),
    expected="logits of the next word after the last place: (batch, vocabulary, 1, 1)",
)


def surprise(logits: Logits, words: Labels) -> Float[Tensor, "batch 1 place"]:
    """Return -log p(word) in nats, shape (batch, 1, places).

    Args:
        logits: (batch, vocabulary, 1, places).
        words: (batch, 1, places).
    """
    of_word = logits.gather(1, words[:, None])[:, 0]
    return (logits.logsumexp(1) - of_word).clamp_min(0.0)  # rounding can take it below 0


class PositionResults(ModelResults):
    """The -log p of each word, position by position in the order of the blocks; blocks are numbered cell by cell.

    Windows wait until they fill a batch, so windows of several blocks and cells share one. A window is shown once,
    also where it counts positions of several blocks, except to resume an interrupted run in the middle of it.
    """

    def __init__(self, name: str, runner: Runner, data: Text, protocol: Scenario, journal: Journal | None) -> None:
        super().__init__(name, runner, journal)
        self.data, self.protocol, self.table = data, protocol, TASK.table(protocol.kind)
        self.windows = windows_of(runner.model, data, protocol)
        spans = [data.span(index) for index in range(len(data))]
        self.positions = np.concatenate([np.arange(*span, dtype=np.int64) for span in spans])
        self.ends = np.cumsum([stop - start for start, stop in spans])
        self.row = np.full(len(data.stream), -1)  # row of a position, among the requested ones
        self.row[self.positions] = np.arange(len(self.positions))
        self.starts = self.windows.start(self.positions)
        cells = len(cells_of(protocol))
        self.columns: dict[str, Column] = {
            name: np.zeros(cells * len(self.positions), kind) for name, kind in _KINDS.items()
        }
        self.done, self.ran = self.begun, 0  # blocks that are finished; windows that were shown
        self.queued, self.latest = 0, (-1, -1)  # windows so far, and the latest of them: cell and start
        self.waiting: deque[tuple[int, int, Stream]] = deque()
        self.unfinished: deque[int] = deque()  # of each block, the windows up to its last one
        for name, column in self.columns.items() if self.saved else ():
            column[: self._end(self.done)] = self.saved["rows"][name].numpy()

    @property
    def forwards(self) -> int:
        """Number of different windows that the finished blocks need."""
        cells, blocks = divmod(self.done, len(self.data))
        whole, part = (len(np.unique(self.starts[:end])) for end in (None, self._end(blocks)))
        return cells * whole + part

    @property
    def remarks(self) -> tuple[str, ...]:
        """Say where the numbers are an approximation."""
        if self.windows.stride == 1:
            return ()
        window, stride = self.windows.window, self.windows.stride
        text = f"strided approximation: windows of {window} words at a stride of {stride}, so words are predicted from"
        return (f"{text} {window - stride + 1} to {window} words; not comparable with stride 1",)

    def show(self, first: int, batch: Shown) -> None:
        """Queue the windows of block number `first`, unless it is finished already."""
        if first < self.done + len(self.unfinished):
            return
        (stream, swapped), (cell, index) = batch, divmod(first, len(self.data))
        rows = slice(self._end(index), self._end(index + 1))
        places, shift = self.positions[rows], cell * len(self.positions)
        self.columns["swapped"][shift + rows.start : shift + rows.stop] = swapped[places]
        for start in np.unique(self.starts[rows]).tolist():
            if (cell, start) > self.latest:
                self.waiting.append((cell, start, stream))
                self.latest, self.queued = (cell, start), self.queued + 1
        self.unfinished.append(self.queued)
        while len(self.waiting) >= self.runner.batch_size:
            self._run(self.runner.batch_size)
        self._count()

    def finish(self) -> None:
        """Show the windows that still wait for a full batch."""
        while self.waiting:
            self._run(self.runner.batch_size)
        self._count()

    def content(self) -> tuple[int, dict[str, Any]]:
        """Return the number of finished blocks, and the columns of their positions."""
        end = self._end(self.done)
        return self.done, {name: torch.from_numpy(column[:end]) for name, column in self.columns.items()}

    def outcomes(self) -> Outcomes:
        """Return one row per position and cell."""
        places, count = cells_of(self.protocol), len(self.positions)
        sizes = np.diff(self.ends, prepend=0)
        columns: dict[str, Any] = {
            "corruption": np.repeat(np.array([name for name, _ in places], dtype=object), count),
            "severity": np.repeat([severity for _, severity in places], count),
            "sample": np.tile(np.repeat(np.array(self.data.ids, dtype=object), sizes), len(places)),
            "position": np.tile(self.positions, len(places)),
            "article": np.tile(self.data.articles[self.positions], len(places)),
        }
        return Outcomes.from_columns(self.table, columns | self.columns)

    def _end(self, blocks: int) -> int:
        """Return the number of rows of the first blocks."""
        cells, rest = divmod(blocks, len(self.data))
        return cells * len(self.positions) + (int(self.ends[rest - 1]) if rest else 0)

    def _count(self) -> None:
        while self.unfinished and self.unfinished[0] <= self.ran:
            self.unfinished.popleft()
            self.done += 1

    def _run(self, most: int) -> None:
        """Show the first windows that wait: those that count their last place only together, others by themselves."""
        with self.timed():
            several = self._several(self.waiting[0])
            batch = [self.waiting.popleft()]
            while self.waiting and len(batch) < most and self._several(self.waiting[0]) == several:
                batch.append(self.waiting.popleft())
            self._fill(batch, *self._answers(batch, several=several))
            self.ran += len(batch)
            self._count()

    def _several(self, waiting: tuple[int, int, Stream]) -> bool:
        """Tell whether a window counts several places."""
        return waiting[1] == 0 or self.windows.stride > 1

    def _answers(self, batch: list[tuple[int, int, Stream]], *, several: bool) -> tuple[NDArray[np.float32], int]:
        """Return -log p of the words after the last places of each window, and how many places these are."""
        length = self.windows.window
        cut = np.stack([stream[start : start + length + 1] for _, start, stream in batch])
        words = torch.from_numpy(cut.astype(np.int64)).to(self.runner.device)[:, None]
        x, labels = words[:, None, :, :-1].float(), words[:, :, 1:] if several else words[:, :, -1:]
        runner = self._everywhere() if several else self.runner
        logits = runner.logits(x)
        if self.windows.stride > 1:
            self.runner.batch_size = runner.batch_size  # memory may have run out
        check_clean(logits, labels)
        return surprise(logits, labels)[:, 0].cpu().numpy(), labels.shape[-1]

    def _everywhere(self) -> Runner:
        """Return a runner of the same model that answers at every place; with stride 1 only one window needs it."""
        runner = copy(self.runner)
        runner.presentation = EVERY_PLACE
        runner.batch_size = self.runner.batch_size if self.windows.stride > 1 else 1
        return runner

    def _fill(self, batch: list[tuple[int, int, Stream]], losses: NDArray[np.float32], places: int) -> None:
        """Write down the positions that each window counts, where they are asked for."""
        for (cell, start, _), values in zip(batch, losses, strict=True):
            first, stop = self.windows.counted(start)
            rows = self.row[first:stop]
            wanted = rows >= 0
            self.columns["nll"][cell * len(self.positions) + rows[wanted]] = values[places - (stop - first) :][wanted]
