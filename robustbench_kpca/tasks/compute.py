"""Interface `Compute`: what a task must define so that its models can be evaluated, attacked and audited."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.engine import CleanBatch
from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca._engine.attack_loop.success import Success
from robustbench_kpca._engine.inference.corrupted import cell_of, corrupted
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca._engine.inference.runner import Presentation, Runner
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.request import View
from robustbench_kpca.protocols.scenario import Clean, Corruption, Scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.tasks.audit_plan import AuditPlan
from robustbench_kpca.tasks.drawing import Drawing
from robustbench_kpca.tasks.results import ModelResults
from robustbench_kpca.tasks.training import Training
from robustbench_kpca.types import Images, Labels

BATCH_SIZE = 64
Row = dict[str, Any]
Data = TypeVar("Data", bound=Dataset)


class Compute(ABC, Generic[Data]):
    """The part of a task that runs models; it needs torch.

    Attributes:
        success: definition of a successful attack.
        training: the training loss, and the scores on held-out data; None where no model can be trained for the task.
        audit: the attacks of an audit, and its number of samples.
        causal: whether the logits at a place may depend only on the input up to it; then a model is checked for it.
        container: class of the results of a model, unless the task overrides `results`.
    """

    success: Success
    training: Training | None = None
    audit: AuditPlan
    causal: bool = False
    container: Callable[..., ModelResults]

    # --- compatibility of model, data and protocol ---

    @abstractmethod
    def require_data(self, data: Data, protocol: Scenario) -> None:
        """Refuse data on which the protocol cannot be evaluated."""

    def match_classes(self, data: Data, classes: int, names: Sequence[str] | None) -> tuple[Data, str]:  # noqa: ARG002
        """Return the data with the model's numbers as labels, and in words how the classes were matched.

        Args:
            data: the samples.
            classes: number of classes of the model.
            names: names of these classes, None if unknown.

        Raises:
            BadInputError: the classes of data and model do not match.
        """
        return data, ""

    def at_size(self, data: Data, view: View | None, *, requested: bool) -> Data:  # noqa: ARG002
        """Return the data as a model takes them; `view`: None if it states none; `requested`: the user named a size.

        Raises:
            BadInputError: the pictures have another size and resizing was not requested, or the task resizes nothing.
        """
        if requested:
            raise BadInputError(
                f"a size or crop for data '{data.name}' ({data.task}), which are not resized", fix="leave it out"
            )
        return data

    @abstractmethod
    def presentation(self, model: nn.Module, kind: str) -> Presentation:
        """Return how the model is called under a protocol of this kind."""

    def batch_size(self, model: nn.Module, data: Data, protocol: Scenario | None) -> int:  # noqa: ARG002
        """Return the default batch size; `protocol` is None for audits."""
        return BATCH_SIZE

    @abstractmethod
    def first_inputs(self, model: nn.Module, data: Data, protocol: Scenario | None, count: int) -> Images:
        """Return the first inputs of the model; its logits on them identify it. `protocol` is None for audits."""

    def try_corruption(self, data: Data, protocol: Corruption, place: tuple[str, int], seed: int, frost: str) -> None:
        """Corrupt one small sample as a cell of the grid does, so that an invalid cell is found at once.

        Raises:
            BadInputError: the corruption cannot be applied.
        """
        index = self.smallest(data)
        corrupted(data.form.array(data.image(index)), cell_of(protocol, place, seed, frost), data.ids[index])

    def smallest(self, data: Data) -> int:  # noqa: ARG002
        """Return the index of a small sample, which is fast to corrupt."""
        return 0

    # --- forward passes only ---

    @abstractmethod
    def shown(
        self, data: Data, protocol: Scenario, rows: Sequence[int], *,
        batch_size: int, workers: int | None, seed: int, frost: str,
    ) -> Iterator[tuple[list[int], Any]]:  # fmt: skip
        """Yield rows of the grid, as (row numbers, a batch for `ModelResults.show`).

        Row c * n + i is sample i of n in cell c of `cells_of(protocol)`. A batch may hold rows of several cells.
        """

    def results(
        self,
        name: str,
        runner: Runner,
        data: Data,
        protocol: Scenario,
        journal: Journal | None,
        seed: int,  # noqa: ARG002
    ) -> ModelResults:
        """Return an empty container for the results of a model; `seed` is that of its own draws."""
        return self.container(name, runner, data, protocol, journal)

    # --- attacks ---

    @abstractmethod
    def batches(
        self, data: Data, indices: Sequence[int], batch_size: int, workers: int | None = 0
    ) -> Iterator[CleanBatch]:
        """Yield clean images in [0, 1] with their labels; the samples at `indices` must have one size."""

    def groups(self, data: Data, indices: Sequence[int]) -> list[list[int]]:  # noqa: ARG002
        """Divide samples into groups of equal size, which can share batches."""
        return [list(indices)]

    @abstractmethod
    def rows(self, sample: Sample, data: Data, space: InputSpace) -> list[Row]:
        """Return the rows of outcomes of a finished sample of the data."""

    def is_settled(self, rows: list[Row]) -> bool:  # noqa: ARG002
        """Tell whether the rows at a smaller budget make a larger one needless: never where more can do more harm."""
        return False

    @abstractmethod
    def combined(self, rows: list[Row], smaller: list[Row]) -> list[Row]:
        """Combine a sample's rows of this attack with those at the smaller budgets; counts of passes are added."""

    def flags(self, outcomes: Outcomes) -> list[str]:
        """Return remarks on outcomes, for the record; here on those of an attack."""
        remarks: list[str] = []
        if outcomes.kind != "attack":
            return remarks
        if zero := int((outcomes["zero_gradients"] > 0).sum()):
            remarks.append(f"{zero} samples met a gradient that was zero everywhere: possible gradient masking")
        if nonfinite := int((outcomes["nonfinite"] > 0).sum()):
            remarks.append(f"{nonfinite} samples met NaN or infinite logits under attack")
        return remarks

    # --- audits ---

    def audited(self, data: Data, count: int | None) -> Data:
        """Return the samples of an audit, evenly spread: `count` of them, or the default number if None.

        Raises:
            BadInputError: `count` is below 1.
        """
        count = self.audit.samples if count is None else count
        if count < 1:
            raise BadInputError(f"limit {count}", expected="at least 1")
        chosen = data.in_order()
        return self.spread(chosen, count)

    def spread(self, data: Data, count: int) -> Data:
        """Return `count` samples that can share a batch, evenly spread: of the largest group."""
        groups = self.groups(data, range(len(data)))
        group: Data = data.take(max(groups, key=len)) if len(groups) > 1 else data
        return group.spread(count)

    def tensors(self, data: Data) -> tuple[Images, Labels]:
        """Return all samples as one batch."""
        _, images, labels = next(self.batches(data, range(len(data)), len(data)))
        return images, labels

    # --- pictures ---

    def draw(self, model: nn.Module, data: Data, protocol: Clean) -> Drawing:  # noqa: ARG002
        """Draw samples and the predictions of a model under a protocol.

        Raises:
            BadInputError: the task has no pictures of predictions.
        """
        raise BadInputError(
            f"data '{data.name}' ({data.task}) has no pictures of predictions",
            fix="give images with masks, such as --data shapes",
        )


def first_batch(compute: Compute[Any], data: Dataset, runner: Runner) -> tuple[Images, Labels]:
    """Return the first samples that can share a batch, on the runner's device."""
    group = compute.groups(data, range(min(runner.batch_size, len(data))))[0]
    _, images, labels = next(compute.batches(data, group, runner.batch_size))
    return images.to(runner.device), labels.to(runner.device)
