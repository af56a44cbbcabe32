"""A board whose specification follows from the records that were found: what `rbk report` shows of one's own runs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.metrics import Mean, leading, metric_for
from robustbench_kpca.protocols.scenario import Attack, Scenario, parse_scenario
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_spec import BoardSpec, Column, Evaluation
from robustbench_kpca.report.matching import fill

_KINDS = ("clean", "attack", "corruption", "shift", "ood")
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
                one.protocol, one.data, one.split, one.limit, one.against, one.eps,
                scenario=parse_scenario(dict(self.protocols[one.protocol]), one.protocol),
            )
            for one in super().needed(column)
        ]  # fmt: skip


def infer(
    records: Sequence[Record],
    *,
    title: str,
    command: str,
    metrics: Sequence[str] = (),
    data: str | None = None,
    seed: int | None = None,
) -> tuple[Board, int]:
    """Return the board of these records, and how many of them are not on it.

    Rows are models. Columns are metrics under protocols: of each record the one that stands for it, or the `metrics`.
    Where several attacks have one threat, a column shows their worst case, and the board is ranked by it; else it is
    ranked by the attack that leaves the worst mean. One seed is shown, by default the most frequent.

    Args:
        records: of one task.
        title: of the page.
        command: that makes it.
        metrics: names of metrics; empty: the leading one of each record.
        data: only records on this data set; None: all.
        seed: only records with this seed; None: the most frequent.

    Raises:
        BadInputError: no record is left, or they are of several tasks.

    """
    chosen = [record for record in records if data in (None, record.spec.data.name)]
    seeds = Counter(record.spec.seed for record in chosen)
    shown = seed if seed is not None else (seeds.most_common(1)[0][0] if seeds else 0)
    chosen = [record for record in chosen if record.spec.seed == shown]
    tasks = {record.spec.data.task for record in chosen}
    if len(tasks) != 1:
        met = f"records of {' and '.join(sorted(tasks))}" if tasks else "no record is left"
        raise BadInputError(met, expected="records of one task", fix="see --data and --seed")
    columns = _columns(chosen, metrics)
    if not columns:
        raise BadInputError(f"no record has {', '.join(metrics)}", fix="see: rbk list metrics")
    spec = InferredSpec(
        title=title,
        intro=f"{len(chosen)} records with seed {shown}, found by `{command}`.",
        data=chosen[0].spec.data.name.partition(_AGAINST)[0],
        split=chosen[0].spec.data.split,
        seed=shown,
        models=tuple(dict.fromkeys(record.spec.model.name for record in chosen)),
        rank_by=_rank_by(columns, chosen),
        column=tuple(columns),
        protocols={one.spec.protocol.name: one.spec.protocol.resolved for one in sorted(chosen, key=_age)},
    )
    missing = "rbk eval -m MODEL -p PROTOCOL"
    board = fill(title, spec, chosen, "inferred from records", command, missing)
    return board, len(records) - sum(run.record is not None for run in board.runs)


def _age(record: Record) -> str:
    return record.created


def _columns(records: Sequence[Record], metrics: Sequence[str]) -> list[Column]:
    """Return the columns: clean first, then attacks by size, corruptions, shifts and detection; the worst case last."""
    groups: dict[tuple[str, str, str, int], Record] = {}
    for record in records:
        groups.setdefault(_key(record), record)
    ordered = sorted(groups.items(), key=lambda item: (_order(item[1]), item[0]))
    wanted = [(key, one, metrics or (leading(one.metrics),)) for key, one in ordered]
    found = [(key, one, name) for key, one, names in wanted for name in names if name in one.metrics]
    found = [(key, one, name) for key, one, name in found if not metric_for(name).needs_reference]
    columns = [
        Column(title=title, protocol=key[0], metric=name, **_samples(key))
        for (key, _, name), title in zip(found, _titles([(key, name) for key, _, name in found]), strict=True)
    ]
    return columns + _worst_cases(columns, {key[0]: one for key, one, _ in found})


def _key(record: Record) -> tuple[str, str, str, int]:
    data = record.spec.data
    return record.spec.protocol.name, data.name, data.split, data.known or data.n


def _order(record: Record) -> tuple[int, str, float]:
    resolved = record.spec.protocol.resolved
    return _KINDS.index(record.kind), str(resolved.get("norm", "")), float(resolved.get("eps", 0))


def _samples(key: tuple[str, str, str, int]) -> dict[str, Any]:
    data, _, against = key[1].partition(_AGAINST)
    return {"data": data, "split": key[2], "limit": key[3], "against": against or None}


def _titles(found: Sequence[tuple[tuple[str, str, str, int], str]]) -> list[str]:
    """Name columns by protocol, and by metric, data, split and number of samples where those alone tell them apart."""
    titles = []
    for (protocol, *samples), metric in found:
        same = [(one, name) for one, name in found if one[0] == protocol]
        parts = [protocol]
        parts += [metric] if len({name for _, name in same}) > 1 else []
        parts += [
            f"n = {part}" if place == 3 else str(part)
            for place, part in enumerate(samples, start=1)
            if len({one[place] for one, _ in same}) > 1
        ]
        titles.append(" · ".join(parts))
    return titles


def _worst_cases(columns: Iterable[Column], records: Mapping[str, Record]) -> list[Column]:
    """Return a column for each threat, metric and set of samples under which several attacks were run."""
    found: dict[_Worst, dict[str, Column]] = {}
    for column in columns:
        assert isinstance(column.protocol, str)
        protocol = records[column.protocol].spec.protocol
        scenario, metric = parse_scenario(dict(protocol.resolved), column.protocol), metric_for(column.metric)
        if isinstance(scenario, Attack) and metric.unattacked and isinstance(metric, Mean):
            samples = (column.data, column.split, column.limit)
            worst = _Worst(scenario.threat, scenario.space, scenario.target, column.metric, *samples)
            found.setdefault(worst, {}).setdefault(protocol.digest, column)  # one attack may have two names
    several = {worst: list(same.values()) for worst, same in found.items() if len(same) > 1}
    return [
        same[0].model_copy(
            update={"title": worst.title(several, len(same)), "protocol": tuple(one.protocol for one in same)}
        )
        for worst, same in several.items()
    ]


@dataclass(frozen=True)
class _Worst:
    """What the attacks of a worst case have in common."""

    threat: Threat
    space: str
    target: str
    metric: str
    data: str | None
    split: str | None
    limit: int | None

    def title(self, others: Iterable["_Worst"], attacks: int) -> str:
        """Name it by its ball, and by what else tells it apart from others of that ball."""
        same = [one.parts for one in others if str(one.threat) == str(self.threat)]
        telling = [part for place, part in enumerate(self.parts) if len({one[place] for one in same}) > 1]
        return " · ".join([f"worst of {attacks}, {self.threat}", *telling])

    @property
    def parts(self) -> tuple[str, ...]:
        """Say in words what it is of, but for the ball."""
        clip = "inside [0, 1]" if self.threat.clip else "not clipped"
        target = "untargeted" if self.target == "none" else f"target {self.target}"
        return self.metric, f"{self.space} space", clip, target, str(self.data), str(self.split), f"n = {self.limit}"


def _rank_by(columns: Sequence[Column], records: Sequence[Record]) -> str:
    """Return the title of a worst case; else of the attack that leaves the worst mean; else of the first column.

    Means of different metrics cannot be compared: it is the worst of the first column's metric that an attack has.
    """
    worst = [column for column in columns if not isinstance(column.protocol, str)]
    if worst:
        return worst[-1].title
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
