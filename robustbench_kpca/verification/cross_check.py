"""Run a native attack and a reference attack on the same model and images, and compare the results."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import require_writable, safe_name, write_atomic
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.given import as_dataset
from robustbench_kpca.evaluation.api import evaluate
from robustbench_kpca.protocols.scenario import Attack, Override
from robustbench_kpca.records.estimate import mcnemar
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.prepare import prepare
from robustbench_kpca.verification.equivalents import reference_of, to_toml

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

    def as_dict(self) -> dict[str, Any]:
        """Return counts, test results and both records as plain values."""
        counts = {name: getattr(self, name) for name in ("both", "only_native", "only_reference", "neither")}
        test = {"p_value": self.p_value, "allowed_points": 100 * ALLOWED, "as_strong": self.as_strong}
        records = {name: getattr(self, name).model_dump(mode="json") for name in ("native", "reference")}
        return {"verdicts": counts} | test | records

    @staticmethod
    def _broken(record: Record) -> NDArray[np.bool_]:
        return np.asarray(record.outcomes["broken_by"] != "")


def cross_check(
    model: nn.Module,
    images: Any,
    labels: Any = None,
    *,
    protocol: str | Path,
    reference: str | None = None,
    out: Path | str | None = None,
    overrides: dict[str, Override] | None = None,
    **how: Any,
) -> Agreement:
    """Evaluate a model with the native attacks of a protocol and with the equivalent reference attacks.

    Args:
        protocol: an attack: a name or a TOML file.
        reference: `LIBRARY:NAME`; default: the known equivalent of each stage (`verification.equivalents`).
        out: folder for both records and the protocol of the reference, which can be evaluated separately.
        overrides: fields of the protocol to replace, such as `{"eps": "3/255"}`.
        **how: other arguments of `evaluate`: seed, batch_size, device, name, ...

    Raises:
        BadInputError: the protocol is not an attack, a stage has no known equivalent, or as in `evaluate`.
    """
    label, scenario = prepare(protocol, overrides or {})
    if not isinstance(scenario, Attack):
        raise BadInputError(f"protocol '{label}' is not an attack", fix="see: rbk list attacks, rbk list protocols")
    other = reference_of(scenario, reference)
    data = as_dataset(images, labels)
    _require_one_label(data)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch if out is None else out)
        require_writable(folder)
        file = folder / f"{safe_name(f'{label}__{_libraries(other)}')}.toml"
        write_atomic(file, to_toml(other).encode())
        prepare(str(file), {})  # refuse an unsupported protocol before the native attack runs
        run: Callable[..., Record] = evaluate
        replaced = dict(overrides or {})
        if _ARGUMENTS & replaced.keys():  # `evaluate` means something else by these names
            own = folder / f"{safe_name(label)}.toml"
            write_atomic(own, to_toml(scenario).encode())
            protocol, replaced = str(own), {}
        native = run(model, data, audit=False, protocol=protocol, out=out, **how, **replaced)
        return Agreement(native, run(model, data, audit=False, protocol=str(file), out=out, **how))


_ARGUMENTS = frozenset({"labels", "classes"})
"""Fields of protocols that have the name of an argument of `evaluate`."""


def _require_one_label(data: Dataset) -> None:
    if task_named(data.task).compute.success.graded:
        raise BadInputError(
            f"data '{data.name}' ({data.task}) has many labels per image, so an attack on an image succeeds by degrees",
            expected="images with one label each, which an attack either breaks or not",
            fix="choose other data, such as --data digits",
        )


def _libraries(scenario: Attack) -> str:
    return "-".join(dict.fromkeys(stage.attack.partition(":")[0] for stage in scenario.stage))
