"""Run a native attack and a reference attack on the same model and images, and compare the results."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.progress import Progress
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.evaluation.engines import engine_for, make_record
from robustbench_kpca.evaluation.evaluation import Evaluation
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.requests import NamedModel
from robustbench_kpca.protocols.scenario import Attack, Override
from robustbench_kpca.records.estimate import mcnemar
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.prepare import prepare, require_startable
from robustbench_kpca.verification.equivalents import reference_of

ALLOWED = 0.005  # largest allowed excess of the native robust accuracy over that of the reference


@dataclass(frozen=True)
class Agreement:
    """Comparison of two records of one model under one threat. Clean errors count as broken by both attacks.

    Running times are comparable only for several batches of images, because the native attack pads every batch.
    """

    native: Record
    reference: Record

    @property
    def both(self) -> int:
        """Number of samples that both attacks broke."""
        return int((self._broken(self.native) & self._broken(self.reference)).sum())

    @property
    def only_native(self) -> int:
        """Number of samples that only the native attack broke."""
        return int((self._broken(self.native) & ~self._broken(self.reference)).sum())

    @property
    def only_reference(self) -> int:
        """Number of samples that only the reference broke."""
        return int((~self._broken(self.native) & self._broken(self.reference)).sum())

    @property
    def neither(self) -> int:
        """Number of samples that neither attack broke."""
        return int((~self._broken(self.native) & ~self._broken(self.reference)).sum())

    @property
    def p_value(self) -> float:
        """P-value of McNemar's exact test; null hypothesis: both attacks break equally many samples."""
        return mcnemar(~self._broken(self.native), ~self._broken(self.reference))

    @property
    def as_strong(self) -> bool:
        """Whether the native robust accuracy is at most 0.5 percentage points above that of the reference."""
        return self.only_reference - self.only_native <= ALLOWED * len(self.native.outcomes)

    @staticmethod
    def _broken(record: Record) -> NDArray[np.bool_]:
        return np.asarray(record.outcomes["broken_by"] != "")


def cross_check(
    model: NamedModel,
    data: Dataset,
    protocol: str | Path,
    overrides: Mapping[str, Override],
    options: RunOptions,
    progress: Progress | None = None,
) -> Agreement:
    """Evaluate a model with the native attacks of a protocol and with the equivalent reference attacks.

    Args:
        protocol: an attack: a name or a TOML file.
        overrides: fields of the protocol to replace, such as `{"eps": "3/255"}`.

    Raises:
        BadInputError: the protocol is not an attack, a stage has no known equivalent, or as in `evaluate`.
        EvaluationError: an attack could not finish.
    """
    label, native = prepare(protocol, overrides)
    if not isinstance(native, Attack):
        raise BadInputError(f"protocol '{label}' is not an attack", fix="see: rbk list attacks, rbk list protocols")
    reference = reference_of(native)
    require_startable(reference)
    _require_one_label(data)
    named = {label: native, f"{label}__{_libraries(reference)}": reference}
    evaluations = [Evaluation.begin(model, data, name, scenario, options) for name, scenario in named.items()]
    with engine_for(options) as engine:
        return Agreement(*(make_record(evaluation, engine, progress) for evaluation in evaluations))


def _require_one_label(data: Dataset) -> None:
    if task_named(data.task).compute.success.graded:
        raise BadInputError(
            f"data '{data.name}' ({data.task}) has many labels per image, so an attack on an image succeeds by degrees",
            expected="images with one label each, which an attack either breaks or not",
            fix="choose other data, such as --data digits",
        )


def _libraries(scenario: Attack) -> str:
    return "-".join(dict.fromkeys(stage.attack.partition(":")[0] for stage in scenario.stage))
