"""The shards of one record while they are made: which is next, what is finished or failed, and how far all of it is."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from robustbench_kpca._core.errors import EvaluationError
from robustbench_kpca._core.files import write_atomic
from robustbench_kpca._core.progress import Every, Progress, time_left
from robustbench_kpca.evaluation.evaluation import Evaluation
from robustbench_kpca.evaluation.part import Part
from robustbench_kpca.protocols.scenario import Attack, cells_of
from robustbench_kpca.records import shard_folder
from robustbench_kpca.records.shard_folder import Running, State, make_folder, write_state
from robustbench_kpca.records.shards import Made, Shard, merge, merged_images, plan_shards, read_made, shard_size
from robustbench_kpca.tasks import task_named

ATTEMPTS = 3
"""How often a shard is tried before it is given up."""


class IncompleteError(EvaluationError):
    """Some shards failed at every attempt; there is no record, and the finished shards are kept."""

    @classmethod
    def of(cls, errors: Sequence["IncompleteError"]) -> "IncompleteError":
        """Return one error for those of several records: the first, and how many there are."""
        first, more = next((error for error in errors if type(error) is cls), errors[0]), len(errors) - 1
        if not more:
            return first
        return type(first)(f"{first}; {more} more {'records are' if more > 1 else 'record is'} incomplete")


class WaitingError(IncompleteError):
    """This process has made its part of a record, and others have not made theirs yet."""


class Schedule:
    """Which shard is next: one that failed is tried again before all others, until it is given up.

    Attributes:
        given_up: why, by shard, for those that failed at every attempt.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.waiting = deque(shards)
        self.running: set[Shard] = set()
        self.failures: dict[Shard, int] = {}
        self.given_up: dict[Shard, str] = {}

    @property
    def open(self) -> int:
        """Number of shards that are neither finished nor given up."""
        return len(self.waiting) + len(self.running)

    def next(self) -> Shard | None:
        """Return a shard to be begun now; None if all others are being made."""
        if not self.waiting:
            return None
        shard = self.waiting.popleft()
        self.running.add(shard)
        return shard

    def finished(self, shard: Shard) -> None:
        """Take note that a shard is done."""
        self.running.remove(shard)

    def failed(self, shard: Shard, why: str) -> None:
        """Take note that a shard failed: it waits for another attempt, or is given up."""
        self.running.remove(shard)
        self.failures[shard] = self.failures.get(shard, 0) + 1
        if self.failures[shard] < ATTEMPTS:
            self.waiting.appendleft(shard)
        else:
            self.given_up[shard] = why


class ShardRun:
    """The shards of one record, and what has become of them.

    What is finished is kept as sums, so the work for one more shard does not grow with the number of finished ones.

    Args:
        folder: where their files are.
        shards: all of them, in order.
        state: what `rbk records status` is told.
        rows: how often a sample counts: once a corruption and severity.
        progress: told how far all workers are together.

    Attributes:
        made: the finished shards, those of earlier attempts included.
        schedule: the others.
    """

    def __init__(
        self, folder: Path, shards: Sequence[Shard], state: State, rows: int, progress: Progress | None
    ) -> None:
        self.folder, self.shards, self.rows, self.progress = folder, shards, rows, progress
        self.state = replace(state, rows=rows * state.samples)
        self.made: dict[Shard, Made] = {}
        self._done, self._seconds = 0, 0.0  # rows and seconds of the finished shards
        for shard in shards:
            if (earlier := read_made(folder, shard)) is not None:
                self._count(shard, earlier)
        self._writes = Every(shard_folder.EVERY)
        self.schedule = Schedule([shard for shard in shards if shard not in self.made])
        self.report({}, last=True)

    @classmethod
    def of(cls, evaluation: Evaluation, out: Path, progress: Progress | None = None) -> "ShardRun":
        """Return the shards of a record; their folder is made."""
        ids, cells, folder = evaluation.data.ids, cells_of(evaluation.scenario), evaluation.folder(out)
        passes = None if isinstance(evaluation.scenario, Attack) else len(cells)
        shards = plan_shards(ids, evaluation.key, shard_size(len(ids), evaluation.spec.batch_size, passes))
        state = evaluation.state(len(shards))
        make_folder(folder)
        return cls(folder, shards, state, len(cells), progress=progress)

    def outcomes(self, evaluation: Evaluation) -> Part:
        """Return the outcomes of all samples, the sums over all shards, and the images that are kept.

        Raises:
            IncompleteError: shards failed.
            EvaluationError: one is missing or damaged.
        """
        self.require_complete()
        table = task_named(evaluation.data.task).table(evaluation.scenario.table)
        outcomes = merge(self.folder, self.shards, table, cells_of(evaluation.scenario))
        return outcomes, self.sum(), merged_images(self.folder, self.shards) if evaluation.images else None

    def _count(self, shard: Shard, work: Made) -> None:
        self.made[shard] = work
        self._done += self.rows * (shard.last - shard.first)
        self._seconds += work.seconds

    def next(self) -> Shard | None:
        """Return a shard to be begun now; None if there is none."""
        return self.schedule.next()

    def finished(self, shard: Shard, work: Made, content: bytes) -> None:
        """Write the file of a shard.

        Raises:
            BadInputError: the folder is not writable any more.
            EvaluationError: the disk is full.
        """
        write_atomic(self.folder / shard.name, content)
        self._count(shard, work)
        self.schedule.finished(shard)

    def failed(self, shard: Shard, why: str) -> None:
        """Take note of a failed attempt."""
        self.schedule.failed(shard, why)

    def report(self, running: Mapping[Shard, Running], *, last: bool = False) -> None:
        """Tell the progress of all workers together, and write it for `rbk records status` now and then.

        The last report is always written.
        """
        done, failed = self._done + sum(each.done for each in running.values()), self.schedule.given_up
        workers = len(self.schedule.running)
        left = time_left((self.state.rows - done) / max(workers, 1), self._done, self._seconds)
        if self._writes.due() or last:
            names = {shard.name: who for shard, who in running.items()}
            reasons = {shard.name: why for shard, why in failed.items()}
            write_state(self.folder, replace(self.state, done=done, left=left, running=names, failed=reasons))
        if self.progress is not None:
            stage = f"{len(self.made)} of {len(self.shards)} shards, {workers} processes"
            result = f"{len(failed)} shards failed" if failed else ""
            self.progress(done, self.state.rows, stage=stage, result=result, left=left)

    def require_complete(self) -> None:
        """Refuse to make a record where shards failed.

        Raises:
            IncompleteError: the message names the first of them, and why.
        """
        failed = self.schedule.given_up
        if failed:
            shard, why = min(failed.items(), key=lambda item: item[0].first)
            raise IncompleteError(
                f"{self.state.model}  {self.state.protocol}: {len(failed)} of {len(self.shards)} shards failed at "
                f"every attempt and there is no record ({shard}: {why})",
                fix="the other shards are kept: run the same command again once the cause is mended",
            )

    def sum(self) -> Made:
        """Return the sums over all shards; remarks in the order of the shards, whichever was finished first."""
        every = [self.made[shard] for shard in self.shards]
        return Made(
            sum(part.forwards for part in every),
            round(sum(part.seconds for part in every), 3),
            min(part.batch_size for part in every),
            tuple(dict.fromkeys(text for part in every for text in part.remarks)),
        )
