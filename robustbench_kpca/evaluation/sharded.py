"""What all engines with several workers share: it gives out shards, and gives those of a lost worker again."""

import pickle
import signal
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ClassVar, Generic, TypeVar

import torch

from robustbench_kpca._core.errors import BadInputError, BenchmarkError, EvaluationError, reason_of
from robustbench_kpca._core.lock import Lock
from robustbench_kpca._core.progress import Progress
from robustbench_kpca.evaluation.backend import Task, Work
from robustbench_kpca.evaluation.evaluation import Evaluation
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.shard_run import ShardRun, Turn
from robustbench_kpca.evaluation.shards import Made, Shard, Smaller
from robustbench_kpca.records.outcomes import Outcomes

THREADS = 1
_LOOK = 0.5  # seconds between two looks at workers that say nothing


@dataclass(eq=False)
class Worker:
    """A process that makes shards.

    Attributes:
        host: its machine.
        pid: number of the process there.
        ready: whether it has loaded the package.
        shard: what it works on.
        turn: how far it is with that.

    """

    host: str = ""
    pid: int = 0
    ready: bool = False
    shard: Shard | None = None
    turn: Turn | None = None


W = TypeVar("W", bound=Worker)


class Sharded(ABC, Generic[W]):
    """A `Backend` whose workers have one thread each. An engine says how they start, are given a task, answer and end.

    It is used in `with`. Inside, this process has one thread, too, since another number of threads changes the last
    bits of logits. SIGTERM does what Ctrl-C does: the workers write their journals and end.

    Attributes:
        count: the most workers at once.
        workers: those that were started and have not been lost.

    """

    several_machines: ClassVar[bool] = False
    """Whether workers may run on other machines. They then refuse to work in another environment than the record's."""
    shares: bool = False
    most_lost: int = 3
    """So many workers in a row that are lost before they are ready end the run."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.workers: list[W] = []
        self.lost = 0

    @abstractmethod
    def start(self) -> W:
        """Start a worker."""

    @abstractmethod
    def order(self, worker: W, work: bytes, task: Task) -> None:
        """Give a task to an idle worker.

        Raises:
            OSError: the worker is gone.

        """

    @abstractmethod
    def news(self, seconds: float) -> Iterable[tuple[W, str, Any]]:
        """Wait so long at most, and return what workers said.

        That is ("ready", (machine, process number)), ("progress", rows done), an answer of `Hand`, or ("lost", how).
        """

    @abstractmethod
    def kill(self, worker: W) -> None:
        """End a worker that hangs, at once."""

    @abstractmethod
    def stop(self) -> None:
        """End all workers: the idle ones at once, the others after they have written their journals."""

    def __enter__(self) -> "Sharded[W]":
        self.threads = torch.get_num_threads()
        torch.set_num_threads(THREADS)
        in_main = threading.current_thread() is threading.main_thread()
        self.listens = in_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # else somebody else does
        if self.listens:
            signal.signal(signal.SIGTERM, _interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self.workers = []
            torch.set_num_threads(self.threads)
            if self.listens:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def make_own(
        self, evaluation: Evaluation, options: RunOptions, smaller: Outcomes | None, progress: Progress | None
    ) -> None:
        """Nothing: this run alone makes the record."""

    def outcomes(
        self,
        evaluation: Evaluation,
        options: RunOptions,
        *,
        lock: Lock | None = None,
        smaller: Outcomes | None = None,
        progress: Progress | None = None,
    ) -> tuple[Outcomes, Made]:
        """Return the outcomes of all samples of a record, and the sums over its shards; see `Backend`."""
        if options.out is not None:
            return self._outcomes(evaluation, options, options.out, lock, smaller, progress)
        with tempfile.TemporaryDirectory() as out:
            return self._outcomes(evaluation, options, Path(out), None, smaller, progress)

    def _outcomes(
        self,
        evaluation: Evaluation,
        options: RunOptions,
        out: Path,
        lock: Lock | None,
        smaller: Outcomes | None,
        progress: Progress | None,
    ) -> tuple[Outcomes, Made]:
        run = ShardRun.of(evaluation, out, progress, lock)
        work = Work(
            evaluation.request or evaluation.subject.runner.model, evaluation.data, evaluation.scenario, options,
            evaluation.spec, str(run.folder.resolve()), evaluation.algorithms,
            evaluation.surroundings if self.several_machines else None,
        )  # fmt: skip
        if run.schedule.open:
            self._carry_out(run, _pickled(work), Smaller(smaller, evaluation.data.ids), 60 * options.stall_minutes)
        return run.outcomes(evaluation)

    def _carry_out(self, run: ShardRun, work: bytes, smaller: Smaller, patience: float) -> None:
        """Give out the open shards until none is left; workers that are silent for `patience` seconds are ended."""
        while run.schedule.open:
            for worker in self._idle:
                if (shard := run.next()) is None:
                    break
                worker.shard, worker.turn = shard, Turn(run.rows_of(shard), worker.host, worker.pid)
                with suppress(OSError):  # it is gone: the news will say how
                    self.order(worker, work, Task(shard, smaller.of(shard)))
            while len(self.workers) < min(self.count, run.schedule.open):
                self.workers.append(self.start())
            run.report(self.turns)
            for worker, kind, content in self.news(self._patience(run)):
                self._hear(worker, kind, content, run)
            if patience:
                self._end_silent(patience, run)
        run.report(self.turns, last=True)

    @property
    def _idle(self) -> list[W]:
        return [worker for worker in self.workers if worker.ready and worker.shard is None]

    def _patience(self, run: ShardRun) -> float:
        """Return the seconds to wait for news: less where a worker could soon take up a shard that failed before."""
        pause = run.schedule.pause() if self._idle else None
        return _LOOK if pause is None else min(pause, _LOOK)

    def _hear(self, worker: W, kind: str, content: Any, run: ShardRun) -> None:
        """Take note of what a worker said."""
        if kind == "ready":
            (worker.host, worker.pid), worker.ready, self.lost = content, True, 0
        elif kind == "progress":
            if worker.turn is not None:
                worker.turn.heard(content)
        elif kind == "refused":
            raise content
        elif kind == "lost":
            self.workers.remove(worker)
            self.lose(worker, content, run)
        else:
            assert worker.shard is not None
            if kind == "made":
                run.finished(worker.shard, *content)
            else:
                run.failed(worker.shard, content)
            worker.shard = worker.turn = None
            if kind == "crashed":
                self.discharge(worker)

    def discharge(self, worker: W) -> None:
        """End a worker after an error that nobody foresaw, such as one of CUDA: all its later work might fail, too."""
        self.kill(worker)
        self.workers.remove(worker)

    def _end_silent(self, patience: float, run: ShardRun) -> None:
        """End workers that have finished no batch for so many seconds; their shards have failed."""
        for worker in [one for one in self.workers if one.turn is not None and one.turn.look() > patience]:
            self.kill(worker)
            self.workers.remove(worker)
            minutes = patience / 60
            self.lose(
                worker,
                f"finished no batch for {minutes:.3g} minutes and was ended (--stall-minutes {2 * minutes:.3g}: later)",
                run,
            )

    def lose(self, worker: W, how: str, run: ShardRun) -> None:
        """Take note of a worker that is gone; its shard is given again."""
        if worker.shard is not None:
            run.failed(worker.shard, f"its process {how}")
        self.lost += not worker.ready
        if self.lost >= self.most_lost:
            raise EvaluationError(
                f"{self.lost} processes in a row could not start (the last one {how})",
                fix='choose fewer processes; in a script of your own, call evaluate below `if __name__ == "__main__":`',
            )

    @property
    def turns(self) -> dict[Shard, Turn]:
        """What is being made, and how far that is."""
        return {one.shard: one.turn for one in self.workers if one.shard is not None and one.turn is not None}


def _pickled(work: Work) -> bytes:
    try:
        return pickle.dumps(work)
    except BenchmarkError:
        raise
    except Exception as error:  # noqa: BLE001 (pickling the user's model can raise anything)
        raise BadInputError(
            f"model '{work.spec.model.name}' or its data cannot be sent to another process ({reason_of(error)})",
            fix="leave processes out, or name the model as FILE.py:FACTORY",
        ) from None


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise KeyboardInterrupt
