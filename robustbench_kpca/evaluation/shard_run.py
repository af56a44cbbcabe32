"""The shards of one record while they are made: what is finished, what failed, and how far all of it is."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from robustbench_kpca.evaluation.backend import IncompleteError
from robustbench_kpca.evaluation.pace import Turn, time_left
from robustbench_kpca.evaluation.schedule import Schedule
from robustbench_kpca.evaluation.shard_folder import EVERY, State, write_state
from robustbench_kpca.evaluation.shards import Made, Shard, read_shard
from robustbench_kpca.files import write_atomic
from robustbench_kpca.lock import Lock
from robustbench_kpca.progress import Progress


class ShardRun:
    """The shards of one record, and what has become of them.

    Args:
        folder: where their files are.
        shards: all of them, in order.
        state: what `rbk status` is told.
        rows: how often a sample counts: once a corruption and severity.
        progress: told how far all workers are together.
        lock: of the record.

    """

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
        self.tell({})

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

    def rows_of(self, shard: Shard) -> int:
        """Return the number of rows of a shard."""
        return self.rows * (shard.last - shard.first)

    def tell(self, turns: Mapping[Shard, Turn]) -> None:
        """Write for `rbk status` how far this is, who makes what, and what failed."""
        self.told = time.monotonic()
        finished = self.before | self.made
        done = sum(map(self.rows_of, finished)) + sum(turn.done for turn in turns.values())
        costs = [(self.rows_of(shard), made.seconds) for shard, made in finished.items()]
        write_state(self.folder, replace(
            self.state, running={shard.name: turn.running() for shard, turn in turns.items()}, done=done,
            failed={shard.name: why for shard, why in self.schedule.given_up.items()}, measured=len(costs),
            left=time_left(self.state.rows - done, costs, len(turns)),
        ))  # fmt: skip

    def report(self, turns: Mapping[Shard, Turn]) -> None:
        """Tell the progress of all workers together.

        Raises:
            EvaluationError: another process has taken over this record.

        """
        self.lock.require()
        if time.monotonic() - self.told >= EVERY:
            self.tell(turns)
        if self.progress is None:
            return
        finished = [*self.before, *self.made]
        self.progress(
            sum(map(self.rows_of, finished)) + sum(turn.done for turn in turns.values()), self.state.rows,
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
