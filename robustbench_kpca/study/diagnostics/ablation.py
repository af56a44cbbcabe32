"""Paired comparison of RPC models with their twins, which have identity attention or no pursuit.

A layer that no longer mixes tokens is identity attention (benchmarks/pursuit.md), which costs nothing. So only an RPC
model's difference from its identity twin, trained in the same way, is an effect of the pursuit. One pair compares two
networks, not two kinds of attention: that needs several training seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from robustbench_kpca.metrics import LEADING, Paired, metric_for
from robustbench_kpca.records.estimate import holm
from robustbench_kpca.records.record import Record

TWINS = {
    "rpc_symvit_all": ("symvit",),
    "rpc_symvit": ("identity_symvit", "symvit"),
    "rpc_fan": ("identity_fan", "symfan"),
}
"""Families and their twins (identity attention in the same layers; no pursuit); longer names first."""
COLUMNS = ("Model", "Twin", "Protocol", "Model's", "Twin's", "Difference (points)", "p (Holm)")


@dataclass(frozen=True)
class Contrast:
    """One metric of a model and its twin on the same images."""

    model: str
    twin: str
    protocol: str
    paired: Paired
    p_holm: float

    def row(self) -> tuple[str, ...]:
        """Return the table row."""
        first, second = 100 * self.paired.first, 100 * self.paired.second
        numbers = (f"{first:.1f}", f"{second:.1f}", f"{first - second:+.1f}", f"{self.p_holm:.3g}")
        return (self.model, self.twin, self.protocol, *numbers)


def contrasts(records: Sequence[Record]) -> list[Contrast]:
    """Pair every record of an RPC model with those of its twins under the same protocol on the same images.

    Duplicate records count once. p-values come from the metric's paired test (McNemar's exact test, sign flips or
    bootstrap) and are adjusted together (Holm 1979).
    """
    records = _distinct(records)
    pairs: list[tuple[str, str, str, Paired]] = []
    for record in records:
        name = record.spec.model.name
        twins = _twins(name)
        metric = next((metric for metric in LEADING if metric in record.metrics), None)
        for other in records:
            if metric and other.spec.model.name in twins and _comparable(record, other):
                paired = metric_for(metric).paired(record.outcomes, other.outcomes)
                pairs.append((name, other.spec.model.name, record.spec.protocol.name, paired))
    return [Contrast(*pair, p) for pair, p in zip(pairs, holm([paired.p_value for *_, paired in pairs]), strict=True)]


def without_identity(records: Sequence[Record]) -> list[str]:
    """Return the RPC models without a record of an identity twin: the pursuit's effect on them is unknown."""
    names = dict.fromkeys(record.spec.model.name for record in records)
    twins_of = {name: [twin for twin in _twins(name) if twin.startswith("identity")] for name in names if _twins(name)}
    return [name for name, twins in twins_of.items() if not any(twin in names for twin in twins)]


def _distinct(records: Sequence[Record]) -> list[Record]:
    """Keep one record per model (name and weights), protocol, data and seed."""
    kept: dict[tuple[object, ...], Record] = {}
    for record in records:
        model, spec = record.spec.model, record.spec
        key = (model.name, model.parameters_sha256, spec.protocol.digest, spec.data.digest, spec.seed)
        kept.setdefault(key, record)
    return list(kept.values())


def _twins(name: str) -> list[str]:
    family = next((family for family in TWINS if name.startswith(f"{family}_")), None)
    return [] if family is None else [other + name.removeprefix(family) for other in TWINS[family]]


def _comparable(record: Record, other: Record) -> bool:
    ours, theirs = ((spec.protocol.digest, spec.data.digest, spec.seed) for spec in (record.spec, other.spec))
    return ours == theirs
