"""Evaluate in several processes of this machine: shards are given out, those of a process that dies are given again."""

import multiprocessing
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from socket import gethostname
from types import FrameType, TracebackType
from typing import Any

import torch

from robustbench_kpca.errors import BadInputError, BenchmarkError, EvaluationError
from robustbench_kpca.evaluation.backend import IncompleteError, Task, Work
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.pace import Turn, time_left
from robustbench_kpca.evaluation.schedule import Schedule
from robustbench_kpca.evaluation.shard_folder import EVERY, State, folder_of, held, next_attempt, write_state
from robustbench_kpca.evaluation.shards import Made, Shard, merge, plan_shards, read_shard, shard_size
from robustbench_kpca.evaluation.trial import Trial
from robustbench_kpca.evaluation.worker import GRACE, serve
from robustbench_kpca.files import sha256
from robustbench_kpca.lock import Lock
from robustbench_kpca.progress import Progress
from robustbench_kpca.protocols.scenario import Attack, cells_of
from robustbench_kpca.records.differences import only
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.tasks import task_named

START = "spawn"
THREADS = 1
_LOOK = 0.5  # seconds between two looks at processes that say nothing
_DEATHS = 3  # processes in a row that die before they have loaded the package


@dataclass
class _Worker:
    """A process, what it was told last, and what it works on."""

    process: BaseProcess
    pipe: Connection
    ready: bool = False
    work: bytes | None = None
    shard: Shard | None = None
    turn: Turn | None = None
    why: str = ""


class Processes:
    """A `Backend`: so many processes, one thread each. They start when they are first needed, and end with `with`.

    Inside `with` this process has one thread, too, since another number of threads changes the last bits of logits.
    SIGTERM does what Ctrl-C does: the processes write their journals and end.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.workers: list[_Worker] = []
        self.started = self.deaths = 0

    def __enter__(self) -> "Processes":
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
            self._stop()
        finally:
            torch.set_num_threads(self.threads)
            if self.listens:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def outcomes(
        self, trial: Trial, options: RunOptions, *, smaller: Outcomes | None = None, progress: Progress | None = None
    ) -> tuple[Outcomes, Made]:
        """Return the outcomes of all samples of a trial, and the sums over its shards; see `Backend`."""
        if options.out is not None:
            return self._outcomes(trial, options, options.out, smaller, progress)
        with tempfile.TemporaryDirectory() as out:
            return self._outcomes(trial, options, Path(out), smaller, progress)

    def _outcomes(
        self, trial: Trial, options: RunOptions, out: Path, smaller: Outcomes | None, progress: Progress | None
    ) -> tuple[Outcomes, Made]:
        spec, ids, cells = trial.spec, trial.data.ids, cells_of(trial.scenario)
        key = sha256((spec.digest() + trial.surroundings.model_dump_json()).encode())
        passes = None if isinstance(trial.scenario, Attack) else len(cells)
        shards = plan_shards(ids, key, shard_size(len(ids), spec.batch_size, passes))
        folder = folder_of(out, spec.stem(), key)
        state = replace(trial.state(len(shards)), attempt=next_attempt(folder))
        work = Work(
            trial.request or trial.runner.model, trial.data, trial.scenario, options, spec, str(folder.resolve())
        )
        with held(folder) as lock:
            run = _Run(folder, shards, state, len(cells), progress, lock)
            if run.schedule.open:
                tasks = {
                    shard: Task(shard, _part(smaller, ids[shard.first : shard.last])) for shard in run.schedule.waiting
                }
                self._carry_out(run, _pickled(work), tasks, options.stall_minutes)
            run.require_complete()
            table = task_named(trial.data.task).table(trial.scenario.kind)
            return merge(folder, shards, table, cells), run.sum()

    def _carry_out(self, run: "_Run", work: bytes, tasks: dict[Shard, Task], stall_minutes: float) -> None:
        """Give out the open shards until none is left."""
        while run.schedule.open:
            for worker in list(self.workers):
                if worker.ready and worker.shard is None and (shard := run.schedule.next()) is not None:
                    worker.shard, worker.turn = shard, Turn(run.rows_of(shard), gethostname(), worker.process.pid or 0)
                    run.tell(self.workers)
                    self._order(worker, work, tasks[shard], run)
            while len(self.workers) < min(self.count, run.schedule.open):
                self._start()
            pause = run.schedule.pause()
            ready = wait([worker.pipe for worker in self.workers], _LOOK if pause is None else min(pause, _LOOK))
            for worker in [one for one in self.workers if one.pipe in ready]:
                self._hear(worker, run)
            self._end_silent(stall_minutes)
            run.report(self.workers)
        run.tell(self.workers)

    def _start(self) -> None:
        context: Any = multiprocessing.get_context(START)
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, self.started, THREADS), name=f"evaluation-{self.started}")
        process.start()
        theirs.close()
        self.started += 1
        self.workers.append(_Worker(process, ours))

    def _order(self, worker: _Worker, work: bytes, task: Task, run: "_Run") -> None:
        try:
            if worker.work is not work:
                worker.pipe.send(("work", work))
                worker.work = work
            worker.pipe.send(("shard", task))
        except OSError:
            self._lost(worker, run)

    def _hear(self, worker: _Worker, run: "_Run") -> None:
        try:
            kind, content = worker.pipe.recv()
        except (EOFError, OSError):
            self._lost(worker, run)
            return
        if kind == "ready":
            worker.ready, self.deaths = True, 0
            return
        if kind == "progress":
            if worker.turn is not None:
                worker.turn.heard(content)
            return
        if kind == "refused":
            raise content
        assert worker.shard is not None
        if kind == "made":
            run.finished(worker.shard, content)
        else:
            run.failed(worker.shard, content)
        worker.shard = worker.turn = None
        run.tell(self.workers)

    def _end_silent(self, minutes: float) -> None:
        """Kill processes that have finished no batch for so many minutes; their shards have failed."""
        for worker in self.workers:
            if worker.turn is not None and minutes and worker.turn.look() > 60 * minutes and not worker.why:
                worker.why = (
                    f"finished no batch for {minutes:g} minutes and was killed (--stall-minutes {2 * minutes:g} waits "
                    "longer)"
                )
                worker.process.kill()

    def _lost(self, worker: _Worker, run: "_Run") -> None:
        """Take note of a process that has died."""
        self.workers.remove(worker)
        worker.process.join(GRACE)
        code = worker.process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with code {code}"
        if worker.shard is not None:
            run.failed(worker.shard, f"its process {worker.why or how}")
        self.deaths += not worker.ready
        if self.deaths >= _DEATHS:
            raise EvaluationError(
                f"{self.deaths} processes in a row could not start (the last one {how})",
                fix='choose fewer processes; in a script of your own, call evaluate below `if __name__ == "__main__":`',
            )

    def _stop(self) -> None:
        """End all processes: the idle ones at once, the others after they have written their journals."""
        for worker in self.workers:
            if worker.shard is not None or not worker.ready:
                worker.process.terminate()
            worker.pipe.close()
        until = time.monotonic() + GRACE
        for worker in self.workers:
            worker.process.join(max(until - time.monotonic(), 0.1))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self.workers = []


class _Run:
    """The shards of one record, and what has become of them."""

    def __init__(
        self, folder: Path, shards: Sequence[Shard], state: State, rows: int, progress: Progress | None, lock: Lock
    ) -> None:
        self.folder, self.shards, self.rows, self.progress, self.lock = folder, shards, rows, progress, lock
        self.state = replace(state, rows=rows * state.samples)
        self.made: dict[Shard, Made] = {}
        self.before: dict[Shard, Made] = {}  # by an earlier attempt
        for shard in shards:
            if (found := read_shard(folder, shard)) is not None:
                self.before[shard] = found[0]
        self.schedule = Schedule([shard for shard in shards if shard not in self.before])
        self.tell([])

    def finished(self, shard: Shard, made: Made) -> None:
        """Take note of a shard whose file is written."""
        self.made[shard] = made
        self.schedule.finished(shard)

    def failed(self, shard: Shard, why: str) -> None:
        """Take note of a failed attempt."""
        self.schedule.failed(shard, why)

    def rows_of(self, shard: Shard) -> int:
        """Return the number of rows of a shard."""
        return self.rows * (shard.last - shard.first)

    def tell(self, workers: Sequence[_Worker]) -> None:
        """Write for `rbk status` how far this is, what runs and what failed."""
        self.told = time.monotonic()
        busy = {one.shard.name: one.turn for one in workers if one.shard is not None and one.turn is not None}
        finished = self.before | self.made
        done = sum(map(self.rows_of, finished)) + sum(turn.done for turn in busy.values())
        costs = [(self.rows_of(shard), made.seconds) for shard, made in finished.items()]
        write_state(self.folder, replace(
            self.state, running={name: turn.running() for name, turn in busy.items()}, done=done,
            failed={shard.name: why for shard, why in self.schedule.given_up.items()}, measured=len(costs),
            left=time_left(self.state.rows - done, costs, len(busy)),
        ))  # fmt: skip

    def report(self, workers: Sequence[_Worker]) -> None:
        """Tell the progress of all processes together.

        Raises:
            EvaluationError: another process has taken over this record.

        """
        self.lock.require()
        if time.monotonic() - self.told >= EVERY:
            self.tell(workers)
        if self.progress is None:
            return
        finished = [*self.before, *self.made]
        turns = [worker.turn for worker in workers if worker.turn is not None]
        self.progress(
            sum(map(self.rows_of, finished)) + sum(turn.done for turn in turns), self.state.rows,
            stage=f"{len(finished)} of {len(self.shards)} shards, {len(turns)} processes",
            result=f"{len(self.schedule.given_up)} shards failed" if self.schedule.given_up else "",
        )  # fmt: skip

    def require_complete(self) -> None:
        """Refuse to make a record where shards failed.

        Raises:
            IncompleteError: the message names the first of them, and why.

        """
        failed = self.schedule.given_up
        if failed:
            shard, why = min(failed.items(), key=lambda one: one[0].first)
            raise IncompleteError(
                f"{self.state.model}  {self.state.protocol}: {len(failed)} of {len(self.shards)} shards failed at "
                f"every attempt and there is no record ({shard}: {why})",
                fix="the other shards are kept: run the same command again once the cause is mended",
            )

    def sum(self) -> Made:
        """Return the sums over all shards."""
        every = [*self.before.values(), *self.made.values()]
        return Made(
            sum(one.forwards for one in every), round(sum(one.seconds for one in every), 3),
            min(one.batch_size for one in every), tuple(dict.fromkeys(text for one in every for text in one.remarks)),
        )  # fmt: skip


def _pickled(work: Work) -> bytes:
    try:
        return pickle.dumps(work)
    except BenchmarkError:
        raise
    except Exception as error:  # noqa: BLE001 (pickling the user's model can raise anything)
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise BadInputError(
            f"model '{work.spec.model.name}' or its data cannot be sent to another process ({why})",
            fix="leave processes out, or name the model as FILE.py:FACTORY",
        ) from None


def _part(outcomes: Outcomes | None, ids: Sequence[str]) -> Outcomes | None:
    return None if outcomes is None else only(outcomes, ids)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise KeyboardInterrupt
