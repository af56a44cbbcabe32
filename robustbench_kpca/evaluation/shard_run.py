"""The shards of one record while they are made: what is finished, what failed, and how far all of it is."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from robustbench_kpca.evaluation.backend import IncompleteError
from robustbench_kpca.evaluation.schedule import Schedule
from robustbench_kpca.evaluation.shard_folder import State, write_state
from robustbench_kpca.evaluation.shards import Made, Shard, read_shard
from robustbench_kpca.files import write_atomic
from robustbench_kpca.progress import Progress


class ShardRun:
    """The shards of one record, and what has become of them.

    Args:
        folder: where their files are.
        shards: all of them, in order.
        state: what `rbk status` is told.
        rows: how often a sample counts: once a corruption and severity.
        progress: told how far all workers are together.

    """

    def __init__(
        self, folder: Path, shards: Sequence[Shard], state: State, rows: int, progress: Progress | None
    ) -> None:
        self.folder, self.shards, self.state, self.rows, self.progress = folder, shards, state, rows, progress
        self.made: dict[Shard, Made] = {}
        self.before: dict[Shard, Made] = {}  # by an earlier attempt
        for shard in shards:
            if (found := read_shard(folder, shard)) is not None:
                self.before[shard] = found[0]
        self.schedule = Schedule([shard for shard in shards if shard not in self.before])
        write_state(folder, state)

    def finished(self, shard: Shard, made: Made, content: bytes) -> None:
        """Write the file of a shard.

        Raises:
            BadInputError: the folder is not writable any more.
            EvaluationError: the disk is full.

        """
        write_atomic(self.folder / shard.name, content)
        self.made[shard] = made
        self.schedule.finished(shard)

    def failed(self, shard: Shard, why: str) -> None:
        """Take note of a failed attempt."""
        self.schedule.failed(shard, why)

    def tell(self, running: Mapping[Shard, int]) -> None:
        """Write for `rbk status` what runs, in which process, and what failed."""
        failed = {shard.name: why for shard, why in self.schedule.given_up.items()}
        now = {shard.name: number for shard, number in running.items()}
        write_state(self.folder, replace(self.state, running=now, failed=failed))

    def report(self, done: Sequence[int]) -> None:
        """Report the progress; `done`: rows of their shard that each busy worker has done."""
        if self.progress is None:
            return
        finished = [*self.before, *self.made]
        rows = self.rows * sum(shard.last - shard.first for shard in finished)
        self.progress(
            rows + sum(done), self.rows * self.state.samples,
            stage=f"{len(finished)} of {len(self.shards)} shards, {len(done)} processes",
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
