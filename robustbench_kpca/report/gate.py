"""Is a record good enough? Against a limit, by its interval; against a baseline, by the paired test of `rbk check`."""

from dataclasses import dataclass
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import leading, metric_for
from robustbench_kpca.records.record import Record, find_records
from robustbench_kpca.report.compare import Rule, compare
from robustbench_kpca.report.consistency import load_consistent


@dataclass(frozen=True)
class Finding:
    """The answer, and the sentence that says it."""

    passed: bool
    text: str

    def __str__(self) -> str:
        return self.text


def against_limit(record: Record, limit: float, metric: str | None = None) -> Finding:
    """Fail where the whole 95 % interval of a metric lies on the wrong side of the limit.

    Args:
        limit: in the metric's own scale: 0.4 is 40 %.
        metric: its name; None: the one that stands for the record.

    Raises:
        BadInputError: the record does not have the metric, its interval is of resamples of one sample, or the limit of
            a share is not in [0, 1].
    """
    name = metric or leading(record.metrics)
    if name not in record.metrics:
        raise BadInputError(f"the record has no {name}", expected=f"one of {', '.join(record.metrics)}")
    kind, estimate = metric_for(name), record.metrics[name]
    if estimate.n < 2 and estimate.low == estimate.high:
        raise BadInputError(f"{name} of {estimate.n} sample has no interval", fix="evaluate more samples")
    if kind.share and not 0 <= limit <= 1:
        raise BadInputError(f"a limit of {limit:g} for {name}", expected="0 to 1: 0.4 is 40 %")
    lower = kind.lower_is_better
    passed = estimate.low <= limit if lower else estimate.high >= limit
    met = estimate.value <= limit if lower else estimate.value >= limit
    side = "above" if lower else "below"
    doubtful = f"not clearly {side}" if passed else f"is {side}"
    relation = ("at most" if lower else "at least") if met else doubtful
    unit = kind.unit
    value = f"{unit.text(estimate.value)} {unit.interval(estimate.low, estimate.high)}"
    return Finding(passed, f"{_what(record)}: {name} {value} {relation} {unit.text(limit)} (n = {estimate.n})")


def against_baseline(record: Record, baseline: Path, rule: str, alpha: float) -> Finding:
    """Fail where the metric of the rule dropped by more than it allows and the paired test has p < alpha.

    `baseline` is a record, or a folder in which exactly one record is of the same data and protocol.

    Raises:
        BadInputError: no such record, or several; another rule than `METRIC:-POINTSpp`.
    """
    known = [load_consistent(path) for path in find_records(baseline)]
    spec = record.spec
    place = (spec.data.digest, spec.protocol.digest)
    like = [other for other in known if (other.spec.data.digest, other.spec.protocol.digest) == place]
    if len(like) != 1:
        same = [other for other in like if other.spec.model.name == spec.model.name]
        if len(same) != 1:
            raise BadInputError(
                f"{len(like)} records in {baseline} are of the same data and protocol as {_what(record)}",
                expected="one",
            )
        like = same
    (done,) = compare([record], like, [Rule.parse(rule)], alpha=alpha)
    return Finding(not done.regression, f"{_what(record)}: {done.metric} {done}{_instead(record, like[0])}")


def _instead(record: Record, baseline: Record) -> str:
    """Name the baseline's model where it is another one."""
    other = baseline.spec.model.name
    return "" if other == record.spec.model.name else f"; the baseline is of {other}"


def _what(record: Record) -> str:
    return f"{record.spec.model.name} on {record.spec.data.name} under {record.spec.protocol.name}"
