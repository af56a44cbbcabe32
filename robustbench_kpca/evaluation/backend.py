"""Interface `Backend`: makes the outcomes of a record elsewhere than in this process, such as in others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import nn

from robustbench_kpca._core.errors import EvaluationError
from robustbench_kpca._core.lock import Lock
from robustbench_kpca._core.progress import Progress
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.evaluation.evaluation import Evaluation
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.evaluation.shards import Made, Shard
from robustbench_kpca.protocols.scenario import Scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Environment, Spec


class IncompleteError(EvaluationError):
    """Some shards failed at every attempt; there is no record, and the finished shards are kept."""

    @classmethod
    def of(cls, errors: Sequence["IncompleteError"]) -> "IncompleteError":
        """Return one error for those of several records: the first, and how many there are."""
        first, others = next((one for one in errors if type(one) is cls), errors[0]), len(errors) - 1
        if not others:
            return first
        return type(first)(f"{first}; {others} more {'records are' if others > 1 else 'record is'} incomplete")


@dataclass(frozen=True)
class Work:
    """All that another process needs to make the outcomes of any of a record's samples; it is pickled once.

    Attributes:
        model: how the model is loaded; the model itself if it was given in Python.
        data: the samples, sorted, with the model's numbers as labels.
        scenario: the protocol.
        options: of the run.
        spec: the record's; the other process must find the same weights and the same answers to the first batch.
        folder: where the journals of its shards are, for a worker that sees it.
        algorithms: versions of our algorithms; the other process must have the same.
        surroundings: the environment that the record states, where workers may run on other machines; they refuse to
            work in another one. None: all of them are on this machine.

    """

    model: ModelRequest | nn.Module
    data: Dataset
    scenario: Scenario
    options: RunOptions
    spec: Spec
    folder: str
    algorithms: Mapping[str, str] = field(default_factory=dict)
    surroundings: Environment | None = None


@dataclass(frozen=True)
class Task:
    """One shard to be made; `smaller`: the outcomes of its samples at the next smaller budget, where known."""

    shard: Shard
    smaller: Outcomes | None = None


class WaitingError(IncompleteError):
    """This process has made its part of a record, and others have not made theirs yet."""


@runtime_checkable
class Backend(Protocol):
    """Makes outcomes in other processes; they are those of a plain run in this process, byte for byte.

    Attributes:
        shares: whether several runs make parts of the same record at once. Each then makes its own in `make_own`,
            before the record is locked.

    """

    shares: bool

    def make_own(
        self, evaluation: Evaluation, options: RunOptions, smaller: Outcomes | None, progress: Progress | None
    ) -> None:
        """Make the part of this run, where several share the work.

        Raises:
            WaitingError: other parts are missing.

        """
        ...

    def outcomes(
        self,
        evaluation: Evaluation,
        options: RunOptions,
        *,
        lock: Lock | None = None,
        smaller: Outcomes | None = None,
        progress: Progress | None = None,
    ) -> tuple[Outcomes, Made]:
        """Return the outcomes of all samples of a record, and the sums over its shards.

        Args:
            evaluation: of the record.
            options: of the run.
            lock: of the record, which the caller holds until it has written the record; None if there is no folder.
            smaller: the outcomes of the same samples at the next smaller budget, where known.
            progress: told how far all workers are together.

        Raises:
            BadInputError: the model or the data cannot be sent to another process; the folder cannot be written.
            EvaluationError: some samples failed; what is finished is kept.

        """
        ...
