"""Train networks at once, each in a process of its own; or each on all processes that a launcher has started."""

import math
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from robustbench_kpca._core.errors import BenchmarkError, EvaluationError, LostError, reason_of
from robustbench_kpca._core.progress import Progress
from robustbench_kpca._engine.inference.journal import StoppableJournal
from robustbench_kpca.evaluation.processes import Pool
from robustbench_kpca.evaluation.worker import CRASHED, FAILED, MADE, Answer
from robustbench_kpca.training.ledger import Options
from robustbench_kpca.training.loop import train_together
from robustbench_kpca.training.seeds import Wanted

TrainUnit = Callable[[Sequence[Wanted], Sequence[Path], Options], object]
"""`train_together`, or what does the same elsewhere."""


class AtOnce:
    """Trains so many units at once, a unit being what `train_together` trains. Each calling thread waits for its own.

    A process on a GPU has the device of its place, see `Pool`. On a CPU the processes share the threads of this one.
    """

    def __init__(self, count: int) -> None:
        self.pool: Pool[str] = Pool(count, make)
        self.threads = max(torch.get_num_threads() // count, 1)
        self.done: dict[str, tuple[int, int]] = {}

    def train(self, wanted: Sequence[Wanted], folders: Sequence[Path], options: Options) -> None:
        """Let a process train a unit.

        Raises:
            BenchmarkError: what `train_together` raised there; or the process is gone.
        """
        name = wanted[0].name
        work = pickle.dumps((wanted, folders, replace(options, on_step=None), self.threads))
        try:
            kind, content = self.pool.submit(work, name).result()
        except LostError as lost:
            raise EvaluationError(
                f"the process of training '{name}' {lost}", fix="the same command goes on after its last epoch"
            ) from None
        if kind == FAILED:
            raise content
        if kind == CRASHED:
            raise EvaluationError(f"training '{name}' failed ({content})")

    @property
    def images(self) -> tuple[int, int]:
        """The images that the trainings which began have seen, and will have seen at their end."""
        self.done |= {name: (line.done, line.total) for name, (_, _, line) in list(self.pool.at_work.items())}
        done, total = zip(*self.done.values(), strict=True) if self.done else ((), ())
        return sum(done), sum(total)

    def close(self) -> None:
        """End all processes at their next step; what they trained since the last epoch is lost."""
        self.pool.close()


def make(work: bytes, name: str, progress: Progress) -> Answer:  # noqa: ARG001 (the name is for the first process)
    """Train a pickled unit in this process."""
    wanted, folders, options, threads = pickle.loads(work)  # noqa: S301 (from the first process of this run)
    torch.set_num_threads(threads)

    def told(done: int, total: int, /, **news: Any) -> None:
        if StoppableJournal.stopping:
            raise SystemExit
        progress(done, total, **news)

    try:
        train_together(wanted, folders, replace(options, on_step=told))
    except BenchmarkError as error:
        return FAILED, error
    except Exception as error:  # noqa: BLE001 (a training that fails must not end the others)
        return CRASHED, reason_of(error)
    return MADE, None


def launched() -> bool:
    """Tell whether `accelerate launch` or `torchrun` has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def on_all_processes() -> Iterator[TrainUnit]:
    """Yield, in the first process of a launch, what trains on all of its processes. The others `follow`.

    After an error nobody tells the others that it is over: the launcher ends them.
    """
    _connect()

    def train(wanted: Sequence[Wanted], folders: Sequence[Path], options: Options) -> None:
        late = None if options.stop_at is None else math.inf  # the first process decides when it is late
        broadcast_object_list([(wanted, folders, replace(options, on_step=None, stop_at=late))])
        train_together(wanted, folders, options)

    yield train
    broadcast_object_list([None])
    PartialState().destroy_process_group()


def follow() -> None:
    """Train what the first process of a launch trains, until it has trained everything.

    Raises:
        EvaluationError: the training failed here, or another process has ended.
    """
    _connect()
    try:
        while (unit := broadcast_object_list([None])[0]) is not None:
            train_together(*unit)
    except RuntimeError as error:
        raise EvaluationError(f"training on all processes of this launch failed ({reason_of(error)})") from None
    PartialState().destroy_process_group()


def _connect() -> None:
    PartialState(cpu=not torch.accelerator.is_available())  # as the training loop does
