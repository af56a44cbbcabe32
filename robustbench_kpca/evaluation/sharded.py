"""Engines that divide the samples of a record into shards: what fails is tried again, and what is made is merged."""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from robustbench_kpca._core.address import dumps
from robustbench_kpca._core.errors import BadInputError, BenchmarkError, EvaluationError, LostError, reason_of
from robustbench_kpca._core.files import write_atomic
from robustbench_kpca._core.progress import Progress
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca.evaluation.evaluation import Evaluation
from robustbench_kpca.evaluation.identity import added_members
from robustbench_kpca.evaluation.part import Part, make_shard
from robustbench_kpca.evaluation.shard_run import IncompleteError, ShardRun, WaitingError
from robustbench_kpca.evaluation.worker import MADE, REFUSED, Answer, Work
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.shard_folder import Running
from robustbench_kpca.records.shards import Shard, read_made

_LOOK = 0.5  # seconds between two looks at how far the shards are


class Engine(ABC):
    """Who makes the outcomes of records. All engines make the same ones, byte for byte."""

    shares_samples: ClassVar[bool] = False
    """Whether models under one protocol are shown each sample together, so that it is loaded and corrupted once."""
    waits: ClassVar[bool] = False
    """Whether other processes make parts of the same record: then its lock is waited for."""

    @abstractmethod
    def make(
        self, evaluations: Sequence[Evaluation], smaller: Outcomes | None, progress: Progress | None
    ) -> list[Part | EvaluationError]:
        """Make the outcomes of models that are shown the same samples under one protocol, and hold their locks.

        Args:
            evaluations: the models; only one, unless the engine shares samples.
            smaller: the outcomes at the next smaller budget, which are gone on from.
            progress: told how far the work is.

        Returns:
            For each model its outcomes, or why there are none.
        """

    def prepare(  # noqa: B027 (most have nothing to prepare)
        self, evaluation: Evaluation, smaller: Outcomes | None, progress: Progress | None
    ) -> None:
        """Do what needs no lock of the record."""

    def close(self) -> None:  # noqa: B027
        """End all processes of the engine."""


class Sharded(Engine):
    """An engine whose workers make the shards of one record at once; what a kind of workers needs is `submit`.

    Attributes:
        count: the most shards at once.
    """

    count: int
    same_machine: ClassVar[bool] = True
    """Whether the workers have the environment of this process without being asked."""

    @abstractmethod
    def submit(self, work: bytes, shard: Shard) -> Future[Answer]:
        """Let a worker call `worker.make` with pickled work and a shard; one that is lost is a `LostError`."""

    def running(self) -> Mapping[Shard, Running]:
        """Return the shards that are made now, as far as the engine knows."""
        return {}

    def require_hope(self) -> None:
        """Refuse to wait any longer for workers that do not come."""

    def make(
        self, evaluations: Sequence[Evaluation], smaller: Outcomes | None, progress: Progress | None
    ) -> list[Part | EvaluationError]:
        """Give out the shards that are not there yet, and merge all; see `Engine.make`.

        Raises:
            BadInputError: the model or the data cannot be sent to another process; the folder cannot be written.
        """
        [evaluation] = evaluations
        out = evaluation.options.out
        with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as place:
            run = ShardRun.of(evaluation, Path(place), progress)
            if run.schedule.open:
                self.carry_out(run, self._pickled(evaluation, smaller, run.folder))
            try:
                return [run.outcomes(evaluation)]
            except IncompleteError as error:
                return [error]

    def carry_out(self, run: ShardRun, work: bytes) -> None:
        """Give out the open shards until none is left; `work` is a pickled `Work`.

        Raises:
            BenchmarkError: the work cannot be done by these workers.
        """
        futures: dict[Future[Answer], Shard] = {}
        while run.schedule.open:
            while len(futures) < self.count and (shard := run.next()) is not None:
                futures[self.submit(work, shard)] = shard
            wait(futures, _LOOK, FIRST_COMPLETED)
            for future in [future for future in futures if future.done()]:
                _take(run, futures.pop(future), future)
            self.require_hope()
            run.report(self.running())
        run.report({}, last=True)

    def _pickled(self, evaluation: Evaluation, smaller: Outcomes | None, folder: Path) -> bytes:
        scenario, data, spec, options = evaluation.scenario, evaluation.data, evaluation.spec, evaluation.options
        work = Work(
            model=evaluation.request or evaluation.subject.runner.model,
            data=data,
            scenario=scenario,
            options=replace(options, out=options.out and options.out.resolve(), processes=self.count),
            spec=spec,
            folder=str(folder.resolve()),
            algorithms=evaluation.algorithms,
            surroundings=None if self.same_machine else evaluation.surroundings,
            added=added_members(scenario, data.task, runs_script=self.same_machine),
            smaller=smaller,
            inside=evaluation.subject.runner.presentation.inside,
        )
        try:
            return dumps(work)
        except BenchmarkError:
            raise
        except Exception as error:  # noqa: BLE001 (pickling the user's model can raise anything)
            raise BadInputError(
                f"model '{spec.model.name}' or its data cannot be sent to another process ({reason_of(error)})",
                fix="leave processes out, or name the model as FILE.py:FACTORY",
            ) from None


def _take(run: ShardRun, shard: Shard, future: Future[Answer]) -> None:
    """Record the result of a shard.

    Raises:
        BenchmarkError: the work cannot be done by these workers.
    """
    error = future.exception()
    if isinstance(error, BenchmarkError) and not isinstance(error, LostError):
        raise error
    if error is not None:
        run.failed(shard, f"its process {error}" if isinstance(error, LostError) else reason_of(error))
        return
    kind, content = future.result()
    if kind == REFUSED:
        raise content
    if kind == MADE:
        run.finished(shard, *content)
    else:
        run.failed(shard, content)


class Share(Engine):
    """This process makes every so many-th shard; others, which know nothing of each other, share the folder.

    For schedulers that only start processes, such as a job array. Any number of them, in any order, at any time, makes
    the same outcomes, and whoever finds all shards makes the record.
    """

    waits = True

    def __init__(self, number: int, of: int) -> None:
        self.number, self.of = number, of

    def prepare(self, evaluation: Evaluation, smaller: Outcomes | None, progress: Progress | None) -> None:
        """Make the shards of this process that are not there.

        Raises:
            WaitingError: other parts are missing.
        """
        run = self._run(evaluation)
        for shard in run.shards[self.number - 1 :: self.of]:
            if shard not in run.made:
                journal = Journal(run.folder / shard.journal, shard.digest)
                subject = replace(evaluation.subject, journal=journal)
                data, scenario, options = evaluation.data, evaluation.scenario, evaluation.options
                _, content = make_shard(subject, data, scenario, options, shard, smaller=smaller, progress=progress)
                write_atomic(run.folder / shard.name, content)
                journal.remove()
        missing = [shard for shard in run.shards if shard not in run.made and read_made(run.folder, shard) is None]
        if missing:
            raise WaitingError(
                f"{evaluation.spec.model.name}  {evaluation.spec.protocol.name}: part {self.number} of {self.of} is "
                f"made; {len(missing)} of {len(run.shards)} shards are not there yet",
                fix="the last part makes the record; run a part that has failed again",
            )

    def make(
        self,
        evaluations: Sequence[Evaluation],
        smaller: Outcomes | None,  # noqa: ARG002
        progress: Progress | None,
    ) -> list[Part | EvaluationError]:
        """Merge the shards, which are all there."""
        return [self._run(evaluation, progress).outcomes(evaluation) for evaluation in evaluations]

    @staticmethod
    def _run(evaluation: Evaluation, progress: Progress | None = None) -> ShardRun:
        assert evaluation.options.out is not None, "RunOptions"
        return ShardRun.of(evaluation, evaluation.options.out, progress)
