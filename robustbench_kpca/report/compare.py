"""The regression gate: records are compared with a baseline sample by sample; only a large and real drop fails."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pandas as pd

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.web.marks import plain
from robustbench_kpca.metrics import Unit, leading, metric_for
from robustbench_kpca.metrics.shared.power import ALPHA
from robustbench_kpca.records.newest import current, remark
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.consistency import load_all

MARK = "<!-- robustbench-kpca -->"
"""First line of a comment, by which the next run finds it."""
_RULE = re.compile(r"(?P<metric>\w+):(?P<sign>[+-])(?P<points>\d+(?:\.\d+)?)(?P<unit>[a-z%]*)")


@dataclass(frozen=True)
class Rule:
    """Fail where `metric` gets worse by more than `drop` (in the metric's own scale) and the paired test agrees."""

    metric: str
    drop: float

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """Parse `robust_accuracy:-2pp` or, for errors, `mce:+2pp`; for metrics without unit `NAME:+0.5`.

        Raises:
            BadInputError: another form, an unknown metric, another unit than the metric's, or the sign of a change for
                the better.
        """
        match = _RULE.fullmatch(text.strip())
        if match is None:
            raise BadInputError(f"rule '{text}'", expected="METRIC:-POINTSpp, such as robust_accuracy:-2pp")
        metric = metric_for(match["metric"])
        worse = "+" if metric.lower_is_better else "-"
        if match["unit"] != metric.unit.points:
            expected = f"METRIC:{worse}POINTS{metric.unit.points}, such as {metric.name}:{worse}2{metric.unit.points}"
            raise BadInputError(f"rule '{text}'", expected=expected)
        if match["sign"] != worse:
            raise BadInputError(
                f"rule '{text}'", expected=f"{metric.name}:{worse}{match['points']}{metric.unit.points}"
            )
        drop = float(match["points"]) / metric.unit.scale
        if metric.share and drop >= 1:
            raise BadInputError(f"rule '{text}', which nothing can fail", expected="a change below 100pp")
        return cls(metric.name, drop)


@dataclass(frozen=True)
class Comparison:
    """One metric of one record against its baseline. `lost` and `gained` count samples that score worse and better."""

    model: str
    data: str
    protocol: str
    metric: str
    baseline: float
    now: float
    lost: int | None
    gained: int | None
    p_value: float
    drop: float
    batch_sizes: tuple[int, int]

    @property
    def change(self) -> float:
        """Difference of the metric, now minus baseline."""
        return self.now - self.baseline

    @property
    def regression(self) -> bool:
        """Whether it got worse by more than the rule allows and the paired test says it is not chance."""
        return self.worse > self.drop + 1e-12 and self.p_value < ALPHA

    @property
    def worse(self) -> float:
        """By how much the metric got worse."""
        return self.change if metric_for(self.metric).lower_is_better else -self.change

    @property
    def title(self) -> str:
        """Name the comparison in one line."""
        return f"{self.metric} of {self.model} on {self.data} under {self.protocol}"

    @property
    def _moved(self) -> str:
        return "" if self.lost is None else f"{self.lost} samples lost, {self.gained} gained, "

    @property
    def unit(self) -> Unit:
        """How the metric is written."""
        return metric_for(self.metric).unit

    def __str__(self) -> str:
        unit, points = self.unit, " points" if self.unit.points else ""
        return (
            f"{unit.number(self.baseline)} -> {unit.text(self.now)} ({unit.change(self.change)}{points}, allowed "
            f"{'+' if metric_for(self.metric).lower_is_better else '-'}{unit.scale * self.drop:g}; {self._moved}"
            f"paired p = {self.p_value:.2g}, alpha = {ALPHA:g})"
        )


def compare(
    records: Sequence[Record], baseline: Sequence[Record], rules: Sequence[Rule], *, partial: bool = False
) -> list[Comparison]:
    """Compare every baseline record with its counterpart, under every rule whose metric it has.

    A counterpart has the baseline's model name, data name, split and protocol name, or, where a folder holds one model
    only, everything but the model's name. Data digest, sample ids and protocol digest must then agree. Weights,
    checkpoint and seed may differ. Of several records of one place, the current one is compared (`records.newest`).

    Raises:
        BadInputError: nothing to compare, a baseline record without counterpart (unless `partial`), unlike data or
            protocol, or a rule that no record can answer.
    """
    records, baseline = (current(each)[0] for each in (records, baseline))
    by_place = _by_place(records)
    models = {record.spec.model.name for record in records}, {record.spec.model.name for record in baseline}
    if len(models[0]) == len(models[1]) == 1:
        (new_name,), (old_name,) = models
        by_place = {(old_name, *place[1:]): record for place, record in by_place.items() if place[0] == new_name}
    comparisons = []
    for place, old in _by_place(baseline).items():
        new = by_place.get(place)
        if new is None:
            if not partial:
                raise BadInputError(
                    f"the baseline has {_name(place)}, the records have not", fix="evaluate it, or pass --partial"
                )
            continue
        _require_alike(old, new, place)
        comparisons += [_compare(old, new, rule) for rule in rules if rule.metric in old.metrics]
    unanswered = [rule.metric for rule in rules if all(rule.metric != done.metric for done in comparisons)]
    if unanswered or not comparisons:
        raise BadInputError(
            f"nothing to compare for {', '.join(unanswered) or 'these records'}", expected="records with that metric"
        )
    return comparisons


def table(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Tabulate the comparisons, regressions first."""
    ordered = sorted(comparisons, key=lambda done: (not done.regression, -done.worse))
    return pd.DataFrame(
        [
            {
                "": "REGRESSION" if done.regression else "ok",
                "Model": done.model,
                "Data": done.data,
                "Protocol": done.protocol,
                "Metric": done.metric,
                "Baseline": done.unit.number(done.baseline),
                "Now": done.unit.number(done.now),
                "Change": done.unit.change(done.change) + done.unit.points,
                "Lost/gained": "" if done.lost is None else f"{done.lost}/{done.gained}",
                "p": f"{done.p_value:.2g}",
                "Batch": "/".join(map(str, dict.fromkeys(done.batch_sizes))),
            }
            for done in ordered
        ]
    )


def junit(comparisons: Sequence[Comparison]) -> bytes:
    """Render JUnit XML: one test case per comparison."""
    failures = sum(done.regression for done in comparisons)
    suite = ET.Element("testsuite", name="robustbench-kpca", tests=str(len(comparisons)), failures=str(failures))
    for done in comparisons:
        case = ET.SubElement(suite, "testcase", classname=f"{done.model}.{done.data}.{done.protocol}", name=done.metric)
        if done.regression:
            ET.SubElement(case, "failure", message=done.title).text = str(done)
        else:
            ET.SubElement(case, "system-out").text = str(done)
    return _xml(suite)


def _xml(suite: ET.Element) -> bytes:
    ET.indent(suite)
    text: bytes = ET.tostring(suite, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def annotations(comparisons: Sequence[Comparison], baseline: Path) -> list[str]:
    """Return GitHub workflow commands, one per regression."""
    return [
        f"::error title={_escape(done.title, in_property=True)}::{_escape(f'{done} (baseline: {baseline})')}"
        for done in comparisons
        if done.regression
    ]


Place = tuple[str, str, str, str]


def _by_place(records: Sequence[Record]) -> dict[Place, Record]:
    specs = [record.spec for record in records]
    places = [(spec.model.name, spec.data.name, spec.data.split, spec.protocol.name) for spec in specs]
    return dict(zip(places, records, strict=True))


def _name(place: Place) -> str:
    model, data, split, protocol = place
    return f"{model} on {data} ({split}) under {protocol}"


def _require_alike(old: Record, new: Record, place: Place) -> None:
    for what, before, now in (
        ("data", old.spec.data.digest, new.spec.data.digest),
        ("protocol", old.spec.protocol.digest, new.spec.protocol.digest),
    ):
        if before != now:
            raise BadInputError(
                f"{_name(place)}: the {what} digest is {now[:12]}, the baseline's is {before[:12]}",
                expected="like to be compared with like",
                fix="evaluate both on the same data and protocol",
            )


def _compare(old: Record, new: Record, rule: Rule) -> Comparison:
    paired = metric_for(rule.metric).paired(old.outcomes, new.outcomes)
    return Comparison(
        model=" instead of ".join(dict.fromkeys([new.spec.model.name, old.spec.model.name])),
        data=new.spec.data.name,
        protocol=new.spec.protocol.name,
        metric=rule.metric,
        baseline=paired.first,
        now=paired.second,
        lost=paired.lost,
        gained=paired.gained,
        p_value=paired.p_value,
        drop=rule.drop,
        batch_sizes=(old.spec.batch_size, new.spec.batch_size),
    )


def _escape(text: str, *, in_property: bool = False) -> str:
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return escaped.replace(":", "%3A").replace(",", "%2C") if in_property else escaped


def unfinished(what: str) -> tuple[str, bytes]:
    """Return the comment and the JUnit XML of a check that did not come to its end: both say that it failed.

    They are written before anything can fail, so that no report of an earlier run stands for this one.
    """
    verdict = f"{what} did not finish, so nothing was compared"
    suite = ET.Element("testsuite", name="robustbench-kpca", tests="1", failures="0", errors="1")
    case = ET.SubElement(suite, "testcase", classname="robustbench-kpca", name=what)
    ET.SubElement(case, "error", message=verdict)
    return f"{MARK}\n### Robustness\n\n**Failed: {verdict}.** Its output says why.\n", _xml(suite)


def comment(comparisons: Sequence[Comparison], aside: Sequence[Record] = ()) -> str:
    """Return one line that says the verdict, a table of all comparisons, regressions first, and what was set aside."""
    regressions = sum(done.regression for done in comparisons)
    many = f"{len(comparisons)} comparisons"
    verdict = f"**{regressions} of {many} are regressions.**" if regressions else f"**No regression in {many}.**"
    rows = table(comparisons).map(lambda cell: plain(str(cell)))
    rule = (
        f"A regression is a drop beyond the allowed points that the paired test on the same samples confirms "
        f"(p < {ALPHA:g} each)."
    )
    head, said = f"### Robustness\n\n{verdict}\n", [plain(text), ""] if (text := remark(aside)) else []
    return "\n".join([MARK, head, rows.to_markdown(index=False, disable_numparse=True), "", rule, "", *said])


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
    within_limit = estimate.value <= limit if lower else estimate.value >= limit
    side = "above" if lower else "below"
    doubtful = f"not clearly {side}" if passed else f"is {side}"
    relation = ("at most" if lower else "at least") if within_limit else doubtful
    unit = kind.unit
    value = f"{unit.text(estimate.value)} {unit.interval(estimate.low, estimate.high)}"
    return Finding(passed, f"{_what(record)}: {name} {value} {relation} {unit.text(limit)} (n = {estimate.n})")


def against_baseline(record: Record, baseline: Path, rule: str) -> Finding:
    """Fail where the metric of the rule dropped by more than it allows and the paired test has p < 0.05.

    `baseline` is a record, or a folder in which the current records (`records.newest`) of the same data and protocol
    are of one model, or one of them is of this model.

    Raises:
        BadInputError: no such record, or several; another rule than `METRIC:-POINTSpp`.
    """
    candidates, aside = current(load_all([baseline]))
    spec = record.spec
    place = (spec.data.digest, spec.protocol.digest)
    like = [other for other in candidates if (other.spec.data.digest, other.spec.protocol.digest) == place]
    if len(like) != 1:
        same = [other for other in like if other.spec.model.name == spec.model.name]
        if len(same) != 1:
            raise BadInputError(
                f"{len(like)} records in {baseline} are of the same data and protocol as {_what(record)}",
                expected="one",
            )
        like = same
    (done,) = compare([record], like, [Rule.parse(rule)])
    said = f"; {text}" if (text := remark(aside)) else ""
    return Finding(not done.regression, f"{_what(record)}: {done.metric} {done}{_instead(record, like[0])}{said}")


def _instead(record: Record, baseline: Record) -> str:
    """Name the baseline's model where it is another one."""
    other = baseline.spec.model.name
    return "" if other == record.spec.model.name else f"; the baseline is of {other}"


def _what(record: Record) -> str:
    return f"{record.spec.model.name} on {record.spec.data.name} under {record.spec.protocol.name}"
