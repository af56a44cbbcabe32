"""Boards whose specification follows from the records found: what `rbk board report` shows of one's own runs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import Mean, leading, metric_for
from robustbench_kpca.protocols.scenario import Attack, Scenario, parse_scenario
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_spec import BoardSpec, Column, Evaluation
from robustbench_kpca.report.matching import fill

_KINDS = ("clean", "attack", "corruption", "shift", "ood", "certificate")
_AGAINST = "-against-"


@dataclass(frozen=True)
class Recorded(Evaluation):
    """An evaluation whose protocol is the one in the records, not what its name stands for today."""

    scenario: Scenario = field(compare=False, kw_only=True)

    def resolve(self) -> tuple[str, Scenario]:
        """Return the label and the protocol of the records."""
        return self.protocol, self.scenario


class InferredSpec(BoardSpec):
    """What a `board.toml` of these records would say. `protocols`: label -> the protocol as the records state it."""

    protocols: dict[str, Any]

    def needed(self, column: Column) -> list[Evaluation]:
        """Return the evaluations that a column needs of each model, one per protocol."""
        return [
            Recorded(
                evaluation.protocol,
                evaluation.data,
                evaluation.split,
                evaluation.limit,
                against=evaluation.against,
                eps=evaluation.eps,
                scenario=parse_scenario(dict(self.protocols[evaluation.protocol]), evaluation.protocol),
            )
            for evaluation in super().needed(column)
        ]


def infer(records: Sequence[Record], title: str, command: str, metrics: Sequence[str] = ()) -> tuple[list[Board], int]:
    """Return one board for each data set, and how many of these records are on none.

    Rows are models. Columns are metrics under protocols: of each record the one that stands for it, or the `metrics`.
    Where several attacks have one threat, a column shows their worst case, and the board is ranked by it; else it is
    ranked by the attack that leaves the worst mean. A board shows one seed: its most frequent.

    Args:
        title: of the page; a board of several is named by its data set, too.
        metrics: names of metrics; empty: the leading one of each record.

    Raises:
        BadInputError: no record has one of the metrics.
    """
    sets: dict[str, list[Record]] = {}
    for record in records:
        sets.setdefault(record.spec.data.name.partition(_AGAINST)[0], []).append(record)
    columns = {name: inferred for name, chosen in sets.items() if (inferred := _columns(_of_one_seed(chosen), metrics))}
    if not columns:
        raise BadInputError(f"no record has {', '.join(metrics)}", fix="see: rbk list metrics")
    boards = [
        _board(_of_one_seed(sets[name]), inferred, name, title if len(columns) == 1 else f"{title}: {name}", command)
        for name, inferred in sorted(columns.items())
    ]
    return boards, len(records) - sum(run.record is not None for board in boards for run in board.runs)


def cell_of(record: Record) -> tuple[str, str, str, int]:
    """Return what tells a record from others of a report: model, samples, protocol and seed; code is not among them."""
    spec = record.spec
    return spec.model.name, spec.data.digest, spec.protocol.name, spec.seed


def _of_one_seed(records: Sequence[Record]) -> list[Record]:
    ((seed, _),) = Counter(record.spec.seed for record in records).most_common(1)
    return [record for record in records if record.spec.seed == seed]


def _board(records: Sequence[Record], columns: Sequence[Column], data: str, title: str, command: str) -> Board:
    seed = records[0].spec.seed
    spec = InferredSpec(
        title=title,
        intro=f"{len(records)} records with seed {seed}, found by `{command}`.",
        data=data,
        split=records[0].spec.data.split,
        seed=seed,
        models=tuple(dict.fromkeys(record.spec.model.name for record in records)),
        rank_by=_rank_by(columns, records),
        column=tuple(columns),
        protocols={
            record.spec.protocol.name: record.spec.protocol.resolved
            for record in sorted(records, key=lambda record: record.created)
        },
    )
    return fill(title, spec, records, "inferred from records", remake=command, missing="rbk eval -m MODEL -p PROTOCOL")


def _columns(records: Sequence[Record], metrics: Sequence[str]) -> list[Column]:
    """Return the columns: clean first, then attacks by size, corruptions, shifts and detection; the worst case last."""
    groups: dict[tuple[str, str, str, int], Record] = {}
    for record in records:
        groups.setdefault(_key(record), record)
    ordered = sorted(groups.items(), key=lambda item: (_order(item[1]), item[0]))
    wanted = [(key, first, metrics or (leading(first.metrics),)) for key, first in ordered]
    named = [(key, first, name) for key, first, names in wanted for name in names if name in first.metrics]
    named = [(key, first, name) for key, first, name in named if not metric_for(name).needs_reference]
    columns = [
        Column(title=title, protocol=key[0], metric=name, **_samples(key))
        for (key, _, name), title in zip(named, _titles([(key, name) for key, _, name in named]), strict=True)
    ]
    return columns + _worst_cases(columns, {key[0]: first for key, first, _ in named})


def _key(record: Record) -> tuple[str, str, str, int]:
    data = record.spec.data
    return record.spec.protocol.name, data.name, data.split, data.known or data.n


def _order(record: Record) -> tuple[int, str, float]:
    resolved = record.spec.protocol.resolved
    return _KINDS.index(record.kind), str(resolved.get("norm", "")), float(resolved.get("eps", 0))


def _samples(key: tuple[str, str, str, int]) -> dict[str, Any]:
    data, _, against = key[1].partition(_AGAINST)
    return {"data": data, "split": key[2], "limit": key[3], "against": against or None}


def _titles(columns: Sequence[tuple[tuple[str, str, str, int], str]]) -> list[str]:
    """Name columns by protocol and number of samples, and by metric, data and split where these tell them apart."""
    titles = []
    for (protocol, *samples, size), metric in columns:
        same = [(key, name) for key, name in columns if key[0] == protocol]
        parts = [protocol]
        parts += [metric] if len({name for _, name in same}) > 1 else []
        parts += [str(part) for place, part in enumerate(samples, start=1) if len({key[place] for key, _ in same}) > 1]
        titles.append(" · ".join([*parts, f"n = {size}"]))
    return titles


def _worst_cases(columns: Iterable[Column], records: Mapping[str, Record]) -> list[Column]:
    """Return a column for each threat, metric and set of samples under which several attacks were run."""
    same_worst: dict[_WorstCase, dict[str, Column]] = {}
    for column in columns:
        assert isinstance(column.protocol, str)
        protocol = records[column.protocol].spec.protocol
        scenario, metric = protocol.scenario, metric_for(column.metric)
        if isinstance(scenario, Attack) and metric.unattacked and isinstance(metric, Mean):
            samples = (column.data, column.split, column.limit)
            case = _WorstCase(scenario.threat, scenario.space, column.metric, *samples)
            same_worst.setdefault(case, {}).setdefault(protocol.digest, column)  # one attack may have two names
    several = {case: list(same.values()) for case, same in same_worst.items() if len(same) > 1}
    return [
        same[0].model_copy(
            update={"title": case.title(several, len(same)), "protocol": tuple(twin.protocol for twin in same)}
        )
        for case, same in several.items()
    ]


@dataclass(frozen=True)
class _WorstCase:
    """What the attacks of a worst case have in common."""

    threat: Threat
    space: str
    metric: str
    data: str | None
    split: str | None
    limit: int | None

    def title(self, cases: Iterable["_WorstCase"], attacks: int) -> str:
        """Name it by its ball and number of samples, and by what else tells it apart from others of that ball."""
        same = [other.parts for other in cases if str(other.threat) == str(self.threat)]
        telling = [part for place, part in enumerate(self.parts) if len({parts[place] for parts in same}) > 1]
        return " · ".join([f"worst of {attacks}, {self.threat}", *telling, f"n = {self.limit}"])

    @property
    def parts(self) -> tuple[str, ...]:
        """Describe the case in words, without the ball and the number of samples."""
        clip = "inside [0, 1]" if self.threat.clip else "not clipped"
        return self.metric, f"{self.space} space", clip, str(self.data), str(self.split)


def _rank_by(columns: Sequence[Column], records: Sequence[Record]) -> str:
    """Return the title of a worst case; else of the attack that leaves the worst mean; else of the first column.

    Means of different metrics cannot be compared: it is the worst of the first column's metric that an attack has.
    """
    worst_cases = [column for column in columns if not isinstance(column.protocol, str)]
    if worst_cases:
        return worst_cases[-1].title
    means: dict[str, float] = {}
    metric = None
    for column in columns:
        values = [
            record.metrics[column.metric].value
            for record in records
            if record.kind == "attack"
            and _key(record) == (column.protocol, column.data, column.split, column.limit)
            and column.metric in record.metrics
        ]
        if values and metric in (None, metric_for(column.metric)):
            metric = metric_for(column.metric)
            means[column.title] = sum(values) / len(values)
    if metric is None:
        return columns[0].title
    return (max if metric.lower_is_better else min)(means, key=lambda title: means[title])
