"""`verify`: the native protocol and another program's, on the same model and images, and how far they agree."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.load import as_dataset
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.api import evaluate
from robustbench_kpca.files import require_writable, safe_name, write_atomic
from robustbench_kpca.protocols.scenario import Attack, Override
from robustbench_kpca.records.estimate import mcnemar
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.prepare import prepare
from robustbench_kpca.verification.equivalents import reference_of, to_toml

ALLOWED = 0.005  # by which the native robust accuracy may be above the reference's


@dataclass(frozen=True)
class Agreement:
    """Two records of one model under one threat, sample by sample. Clean errors count as broken by both.

    Seconds compare fairly only from some batches of images on: the native attack fills every batch up to its one size.
    """

    native: Record
    reference: Record

    @property
    def both(self) -> int:
        """Samples that both broke."""
        return int((self._broken(self.native) & self._broken(self.reference)).sum())

    @property
    def only_native(self) -> int:
        """Samples that only the native attack broke."""
        return int((self._broken(self.native) & ~self._broken(self.reference)).sum())

    @property
    def only_reference(self) -> int:
        """Samples that only the reference broke."""
        return int((~self._broken(self.native) & self._broken(self.reference)).sum())

    @property
    def neither(self) -> int:
        """Samples that stand."""
        return int((~self._broken(self.native) & ~self._broken(self.reference)).sum())

    @property
    def p_value(self) -> float:
        """McNemar's exact test that the two break equally many."""
        return mcnemar(~self._broken(self.native), ~self._broken(self.reference))

    @property
    def as_strong(self) -> bool:
        """Whether the native robust accuracy is at most half a point above the reference's."""
        return self.only_reference - self.only_native <= ALLOWED * len(self.native.outcomes)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, with both records."""
        counts = {name: getattr(self, name) for name in ("both", "only_native", "only_reference", "neither")}
        verdict = {"p_value": self.p_value, "allowed_points": 100 * ALLOWED, "as_strong": self.as_strong}
        records = {name: getattr(self, name).model_dump(mode="json") for name in ("native", "reference")}
        return {"verdicts": counts} | verdict | records

    @staticmethod
    def _broken(record: Record) -> NDArray[np.bool_]:
        return np.asarray(record.outcomes["broken_by"] != "")


def verify(
    model: nn.Module,
    images: Any,
    labels: Any = None,
    *,
    protocol: str,
    reference: str | None = None,
    out: Path | str | None = None,
    overrides: dict[str, Override] | None = None,
    **how: Any,
) -> Agreement:
    """Evaluate a model under a protocol, and under the same with the reference attack.

    Args:
        model: as for `evaluate`.
        images: as for `evaluate`.
        labels: as for `evaluate`.
        protocol: an attack, by name or as a TOML file.
        reference: `LIBRARY:NAME`; by default the most trusted program for each stage (`verification.equivalents`).
        out: folder for both records and the reference's protocol, which can be evaluated again by itself.
        overrides: fields of the protocol, such as `{"eps": "3/255"}`.
        **how: what else `evaluate` takes: seed, batch_size, device, name, ...

    Raises:
        BadInputError: the protocol is no attack, or nobody else's is trusted to do it; all that `evaluate` refuses.

    """
    label, scenario = prepare(protocol, overrides or {})
    if not isinstance(scenario, Attack):
        raise BadInputError(f"protocol '{label}' is no attack", fix="see: rbk list attacks, rbk list protocols")
    other = reference_of(scenario, reference)
    data = as_dataset(images, labels)
    _require_verdicts(data)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch if out is None else out)
        require_writable(folder)
        file = folder / f"{safe_name(f'{label}__{_libraries(other)}')}.toml"
        write_atomic(file, to_toml(other).encode())
        prepare(str(file), {})  # before anything runs, as the native one: both refuse what they cannot attack
        run: Callable[..., Record] = evaluate
        native = run(model, data, audit=False, protocol=protocol, out=out, **how, **(overrides or {}))
        return Agreement(native, run(model, data, audit=False, protocol=str(file), out=out, **how))


def _require_verdicts(data: Dataset) -> None:
    if task_named(data.task).compute.success.graded:
        raise BadInputError(
            f"data '{data.name}' ({data.task}): attacks make its samples worse by degrees",
            expected="samples that an attack breaks or not, so that two programs can be compared verdict by verdict",
            fix="give images with one label each",
        )


def _libraries(scenario: Attack) -> str:
    return "-".join(dict.fromkeys(stage.attack.partition(":")[0] for stage in scenario.stage))
