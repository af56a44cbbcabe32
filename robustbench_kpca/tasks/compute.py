"""What a task needs to be evaluated, attacked and audited; needs torch."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from torch import nn

from robustbench_kpca.attack_loop.engine import CleanBatch
from robustbench_kpca.attack_loop.pool import Sample
from robustbench_kpca.attack_loop.success import Success
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.inference.input_space import InputSpace
from robustbench_kpca.inference.journal import Journal
from robustbench_kpca.inference.runner import Presentation, Runner
from robustbench_kpca.protocols.scenario import Scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.tasks.audit_plan import AuditPlan
from robustbench_kpca.tasks.drawing import Drawing
from robustbench_kpca.tasks.results import ModelResults
from robustbench_kpca.tasks.training import Training
from robustbench_kpca.types import Images, Labels

BATCH_SIZE = 64
Row = dict[str, Any]
Place = tuple[str, int]
"""A cell of a grid: corruption and severity."""
Data = TypeVar("Data", bound=Dataset)


class Compute(ABC, Generic[Data]):
    """The computing half of a task.

    Attributes:
        success: what a successful attack is.
        training: the loss of a batch, and the scores on held-out data; None: no model can be trained for the task.
        audit: which attacks an audit makes, on how many samples, and what it compares.

    """

    success: Success
    training: Training | None = None
    audit: AuditPlan

    # --- model, data and protocol belong together ---

    @abstractmethod
    def require_data(self, data: Data, protocol: Scenario) -> None:
        """Refuse data that the protocol cannot be measured on.

        Raises:
            BadInputError: what does not fit.

        """

    def require_classes(self, classes: int, data: Data) -> None:
        """Refuse a model with another number of classes than the data, where they must be the same.

        Raises:
            BadInputError: both numbers.

        """

    @abstractmethod
    def presentation(self, model: nn.Module, *, attacked: bool) -> Presentation:
        """Return how the model is shown a batch: as attacks do, or as evaluations that need forward passes only do."""

    def batch_size(self, model: nn.Module, data: Data, protocol: Scenario | None) -> int:  # noqa: ARG002
        """Return the default batch size; `protocol` is None for audits."""
        return BATCH_SIZE

    @abstractmethod
    def first_inputs(self, model: nn.Module, data: Data, protocol: Scenario | None, count: int) -> Images:
        """Return the first inputs that the model is shown: its answers to them identify it. None stands for audits."""

    def smallest(self, data: Data) -> int:  # noqa: ARG002
        """Return the number of a sample that is quickly corrupted."""
        return 0

    # --- forward passes only ---

    @abstractmethod
    def shown(
        self, data: Data, protocol: Scenario, place: Place, indices: Sequence[int], *,
        batch_size: int, workers: int, seed: int, frost: str,
    ) -> Iterator[tuple[list[int], Any]]:  # fmt: skip
        """Yield the samples at `indices` in one cell, as (their numbers, a batch that `ModelResults.show` takes)."""

    @abstractmethod
    def results(
        self, name: str, runner: Runner, data: Data, protocol: Scenario, journal: Journal | None
    ) -> ModelResults:
        """Return the results of a model, to be filled."""

    # --- attacks ---

    @abstractmethod
    def batches(self, data: Data, indices: Sequence[int], batch_size: int, workers: int = 0) -> Iterator[CleanBatch]:
        """Yield clean samples in [0, 1] with their labels; those at `indices` are of one size."""

    def groups(self, data: Data, indices: Sequence[int]) -> list[list[int]]:  # noqa: ARG002
        """Divide samples into groups that can share batches."""
        return [list(indices)]

    @abstractmethod
    def rows(self, sample: Sample, space: InputSpace) -> list[Row]:
        """Return the rows of outcomes of a sample that an attack has decided."""

    @abstractmethod
    def is_settled(self, rows: list[Row]) -> bool:
        """Tell whether a sample need not be attacked at a larger budget, given its rows at a smaller one."""

    @abstractmethod
    def combined(self, rows: list[Row], smaller: list[Row]) -> list[Row]:
        """Return a sample's rows, given those of the attack and those at the smaller budgets; counts add up."""

    def flags(self, outcomes: Outcomes) -> list[str]:
        """Return remarks on the outcomes of an attack, for the record."""
        found = []
        if zero := int((outcomes["zero_gradients"] > 0).sum()):
            found.append(f"{zero} samples met a gradient that was zero everywhere: the attack may be blind there")
        if nonfinite := int((outcomes["nonfinite"] > 0).sum()):
            found.append(f"{nonfinite} samples met NaN or infinite logits under attack")
        return found

    # --- audits ---

    def audited(self, data: Data, count: int | None) -> Data:
        """Return the samples that an audit looks at, evenly spread; `count` of them, or as many as it does by default.

        Raises:
            BadInputError: fewer than 1.

        """
        count = self.audit.samples if count is None else count
        if count < 1:
            raise BadInputError(f"limit {count}", expected="at least 1")
        chosen = data.in_order()
        return self.spread(chosen, count)

    def spread(self, data: Data, count: int) -> Data:
        """Keep `count` samples that can share a batch, evenly spread."""
        kept: Data = data.spread(count)
        return kept

    def tensors(self, data: Data) -> tuple[Images, Labels]:
        """Return all samples as one batch."""
        _, images, labels = next(self.batches(data, range(len(data)), len(data)))
        return images, labels

    # --- pictures ---

    def draw(self, model: nn.Module, data: Data, protocol: Scenario, *, seed: int, frost: str) -> Drawing:  # noqa: ARG002
        """Draw samples and what a model makes of them under a protocol; `frost` is what `frost_of` returns.

        Raises:
            BadInputError: the task has no such pictures.

        """
        raise BadInputError(
            f"data '{data.name}' ({data.task}) has no pictures of predictions", fix="give scenes: --data shapes"
        )


def first_batch(compute: Compute[Any], data: Dataset, runner: Runner) -> tuple[Images, Labels]:
    """Return the first samples that can share a batch, on the runner's device."""
    group = compute.groups(data, range(min(runner.batch_size, len(data))))[0]
    _, images, labels = next(compute.batches(data, group, runner.batch_size))
    return images.to(runner.device), labels.to(runner.device)
