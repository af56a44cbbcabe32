"""Let several workers make the shards of a record, and try again what fails; or make some of them in this process."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from robustbench_kpca._core.address import dumps
from robustbench_kpca._core.errors import BadInputError, BenchmarkError, LostError, reason_of
from robustbench_kpca._core.files import write_atomic
from robustbench_kpca._core.progress import Progress
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca.evaluation.evaluation import Evaluation
from robustbench_kpca.evaluation.identity import added_members
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.part import make_shard
from robustbench_kpca.evaluation.pool import Call, Pool
from robustbench_kpca.evaluation.shard_run import ShardRun, WaitingError
from robustbench_kpca.evaluation.shards import Made, read_made
from robustbench_kpca.evaluation.worker import MADE, REFUSED, Work
from robustbench_kpca.records.outcomes import Outcomes

_LOOK = 0.5  # seconds between two looks at calls that say nothing


def outcomes_by(
    pool: Pool,
    evaluation: Evaluation,
    *,
    smaller: Outcomes | None = None,
    progress: Progress | None = None,
) -> tuple[Outcomes, Made]:
    """Return the outcomes of all samples of a record, and the sums over its shards.

    They are those of a plain run in this process with one thread, byte for byte.

    Args:
        pool: of workers.
        evaluation: of the record.
        smaller: the outcomes of the same samples at the next smaller budget, where known.
        progress: told how far all workers are together.

    Raises:
        BadInputError: the model or the data cannot be sent to another process; the folder cannot be written.
        EvaluationError: some samples failed; what is finished is kept.
    """
    options = evaluation.options
    with _folder(options) as out:
        run = ShardRun.of(evaluation, out, progress)
        if run.schedule.open:
            work = Work(
                model=evaluation.request or evaluation.subject.runner.model,
                data=evaluation.data,
                scenario=evaluation.scenario,
                options=options,
                spec=evaluation.spec,
                folder=str(run.folder.resolve()),
                algorithms=evaluation.algorithms,
                surroundings=None if pool.same_machine else evaluation.surroundings,
                added=added_members(evaluation.scenario, evaluation.data.task, runs_script=pool.same_machine),
                smaller=smaller,
            )
            carry_out(run, pool, _pickled(work))
        return run.outcomes(evaluation)


@contextmanager
def _folder(options: RunOptions) -> Iterator[Path]:
    if options.out is not None:
        yield options.out
    else:
        with tempfile.TemporaryDirectory() as out:
            yield Path(out)


def carry_out(run: ShardRun, pool: Pool, work: bytes) -> None:
    """Give out the open shards until none is left; `work` is a pickled `Work`.

    Raises:
        BenchmarkError: the work cannot be done by these workers.
    """
    calls: list[Call] = []
    while run.schedule.open:
        while len(calls) < pool.count and (shard := run.next()) is not None:
            calls.append(pool.submit(work, shard))
        _wait(calls, run.schedule.pause() if len(calls) < pool.count else None)
        for call in [call for call in calls if call.done()]:
            calls.remove(call)
            _take(run, call)
        run.report({call.shard: call for call in calls if call.worker is not None})
    run.report({}, last=True)


def _wait(calls: Sequence[Call], pause: float | None) -> None:
    """Wait for a call to end, but not longer than until a shard that failed before may be tried again."""
    seconds = _LOOK if pause is None else min(pause, _LOOK)
    if calls:
        wait(calls, seconds, FIRST_COMPLETED)
    else:
        time.sleep(seconds)


def _take(run: ShardRun, call: Call) -> None:
    """Take note of what became of a call.

    Raises:
        BenchmarkError: the work cannot be done by these workers.
    """
    error = call.exception()
    if isinstance(error, BenchmarkError) and not isinstance(error, LostError):
        raise error
    if error is not None:
        run.failed(call.shard, f"its process {error}" if isinstance(error, LostError) else reason_of(error))
        return
    kind, content = call.result()
    if kind == REFUSED:
        raise content
    if kind == MADE:
        run.finished(call.shard, *content)
    else:
        run.failed(call.shard, content)


def _pickled(work: Work) -> bytes:
    try:
        return dumps(work)
    except BenchmarkError:
        raise
    except Exception as error:  # noqa: BLE001 (pickling the user's model can raise anything)
        raise BadInputError(
            f"model '{work.spec.model.name}' or its data cannot be sent to another process ({reason_of(error)})",
            fix="leave processes out, or name the model as FILE.py:FACTORY",
        ) from None


def make_share(evaluation: Evaluation, smaller: Outcomes | None = None, progress: Progress | None = None) -> None:
    """Make the shards of this process's part that are not there: every so many-th of the record.

    For schedulers that only start processes, such as a job array. They know nothing of each other and share a folder;
    whoever finds all shards makes the record. Any number of them, in any order, at any time, makes the same outcomes.

    Raises:
        WaitingError: other parts are missing.
    """
    options = evaluation.options
    assert options.out is not None, "RunOptions"
    run, (number, of) = ShardRun.of(evaluation, options.out), options.share
    for shard in run.shards[number - 1 :: of]:
        if shard not in run.made:
            journal = Journal(run.folder / shard.journal, shard.digest)
            _, content = make_shard(
                replace(evaluation.subject, journal=journal), evaluation.data, evaluation.scenario, options, shard,
                smaller=smaller, progress=progress,
            )  # fmt: skip
            write_atomic(run.folder / shard.name, content)
            journal.remove()
    missing = [shard for shard in run.shards if shard not in run.made and read_made(run.folder, shard) is None]
    if missing:
        raise WaitingError(
            f"{evaluation.spec.model.name}  {evaluation.spec.protocol.name}: part {number} of {of} is made; "
            f"{len(missing)} of {len(run.shards)} shards are not there yet",
            fix="the last part makes the record; run a part that has failed again",
        )
