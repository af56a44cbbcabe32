"""The engine of `--part`: several processes that know nothing of each other make shards of one record in one folder.

For schedulers that only start processes, such as a job array. Each makes every N-th shard; whoever finds all of them
makes the record. Any number of them, in any order, at any time, makes the same outcomes.
"""

from dataclasses import dataclass, replace

from robustbench_kpca._core.files import write_atomic
from robustbench_kpca._core.progress import Progress
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca.evaluation.evaluation import Evaluation
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.part import make_shard
from robustbench_kpca.evaluation.shard_run import IncompleteError, ShardRun
from robustbench_kpca.evaluation.shards import Shard, Smaller, read_made
from robustbench_kpca.records.outcomes import Outcomes


class WaitingError(IncompleteError):
    """This process has made its part of a record, and others have not made theirs yet."""


@dataclass(frozen=True)
class Share:
    """This process, which makes each `of`-th shard, from number `number` on."""

    number: int
    of: int

    def make(
        self, evaluation: Evaluation, options: RunOptions, smaller: Outcomes | None, progress: Progress | None
    ) -> None:
        """Make those of its shards that are not there.

        Raises:
            WaitingError: other parts are missing.

        """
        assert options.out is not None, "RunOptions"
        run = ShardRun.of(evaluation, options.out)
        known = Smaller(smaller, evaluation.data.ids)
        for shard in run.shards[self.number - 1 :: self.of]:
            if shard not in run.made:
                self._make(run, shard, evaluation, options, smaller=known.of(shard), progress=progress)
        missing = [shard for shard in run.shards if shard not in run.made and read_made(run.folder, shard) is None]
        if missing:
            raise WaitingError(
                f"{evaluation.spec.model.name}  {evaluation.spec.protocol.name}: part {self.number} of {self.of} is "
                f"made; {len(missing)} of {len(run.shards)} shards are not there yet",
                fix="the last part makes the record; run a part that has failed again",
            )

    def _make(
        self,
        run: ShardRun,
        shard: Shard,
        evaluation: Evaluation,
        options: RunOptions,
        smaller: Outcomes | None,
        progress: Progress | None,
    ) -> None:
        journal = Journal(run.folder / shard.journal, shard.digest)
        _, content = make_shard(
            replace(evaluation.subject, journal=journal),
            evaluation.data,
            evaluation.scenario,
            options,
            shard,
            smaller=smaller,
            progress=progress,
        )
        write_atomic(run.folder / shard.name, content)
        journal.remove()
