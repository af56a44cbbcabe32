"""A leaderboard: what its `board.toml` asks for, and the records that fill it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.metrics import Mean, Metric, Paired, Scores, aligned, answers, metric_for
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.presets import board_path
from robustbench_kpca.records.audit import Audit
from robustbench_kpca.records.estimate import Estimate, holm, mean
from robustbench_kpca.records.record import SUFFIX, OlderSchemaError, Record
from robustbench_kpca.report.board_spec import BoardSpec, Column
from robustbench_kpca.report.consistency import load_consistent
from robustbench_kpca.strict import load_toml, validate

ALPHA = 0.05


@dataclass(frozen=True)
class Run:
    """One evaluation a board needs: `ready`, `missing`, or `stale`.

    A stale one was made under another version of its protocol, or its record is of an older schema.
    """

    model: str
    protocol: str
    against: str | None
    state: str
    record: Record | None


@dataclass(frozen=True)
class Board:
    """A board with the records it could find; its numbers are computed once, when they are first asked for."""

    name: str
    spec: BoardSpec
    runs: tuple[Run, ...]

    def record(self, model: str, protocol: str, against: str | None = None) -> Record | None:
        """Return the record that fills a cell, if it is there and current."""
        wanted = (model, protocol, against)
        return next((run.record for run in self.runs if (run.model, run.protocol, run.against) == wanted), None)

    def records(self, model: str, column: Column) -> list[Record]:
        """Return the records behind a cell, none of them unless all are there."""
        found = [self.record(model, protocol, column.against) for protocol in column.protocols]
        return [] if None in found else [record for record in found if record is not None]

    @cached_property
    def metrics(self) -> dict[str, Metric | None]:
        """Metrics by column title, with the errors of the reference model where a column names one.

        None where that model has no record.
        """
        return {column.title: self._metric(column) for column in self.spec.column}

    @cached_property
    def estimates(self) -> dict[tuple[str, str], Estimate | None]:
        """The number of every cell, by model and column title; None where a record is missing."""
        return {
            (model, column.title): self._estimate(model, column)
            for model in self.spec.models
            for column in self.spec.column
        }

    @cached_property
    def winners(self) -> dict[str, str | None]:
        """By column title, the model that is better than every other in this column beyond chance, or None."""
        return {column.title: self._clear_winner(column) for column in self.spec.column}

    def estimate(self, model: str, column: Column) -> Estimate | None:
        """Return the number of a cell."""
        return self.estimates[model, column.title]

    def clear_winner(self, column: Column) -> str | None:
        """Return the model that is better than every other in this column beyond chance, or None.

        Paired tests on the same samples (McNemar exact, sign flips for graded scores, the bootstrap for what is not a
        mean) against each other model, Holm-adjusted, all below 0.05.
        """
        return self.winners[column.title]

    def ranked(self) -> list[str]:
        """Model names, best first by `rank_by`; those without a number last."""
        return list(self._ranked)

    @cached_property
    def _ranked(self) -> list[str]:
        column = next(column for column in self.spec.column if column.title == self.spec.rank_by)
        sign = 1 if metric_for(column.metric).lower_is_better else -1

        def key(model: str) -> tuple[bool, float, str]:
            estimate = self.estimate(model, column)
            return (estimate is None, 0 if estimate is None else sign * estimate.value, model)

        return sorted(self.spec.models, key=key)

    def _metric(self, column: Column) -> Metric | None:
        metric = metric_for(column.metric)
        if column.reference is None:
            return metric
        records = self.records(column.reference, column)
        return metric.relative_to(records[0].outcomes) if records else None

    def _estimate(self, model: str, column: Column) -> Estimate | None:
        metric, records = self.metrics[column.title], self.records(model, column)
        if metric is None or not records:
            return None
        if len(records) > 1:
            return mean(_worst(metric, records).values)
        measured = records[0].metrics.get(metric.name)  # seen to follow from the outcomes when it was loaded
        return measured if column.reference is None else metric.estimate(records[0].outcomes)

    def paired(self, model: str, other: str, column: Column) -> Paired | None:
        """Compare two models in one column, sample by sample."""
        metric, mine, theirs = self.metrics[column.title], self.records(model, column), self.records(other, column)
        if metric is None or not mine or not theirs:
            return None
        if len(mine) == 1:
            return metric.paired(mine[0].outcomes, theirs[0].outcomes)
        assert isinstance(metric, Mean)
        return metric.paired_scores(_worst(metric, mine), _worst(metric, theirs))

    def audits(self, model: str) -> list[Audit | None]:
        """Return the audits in a model's records of attacks, each once; None stands for records without one."""
        found: list[Audit | None] = []
        for run in self.runs:
            if run.model == model and run.record and run.record.kind == "attack":
                found += [] if run.record.audit in found else [run.record.audit]
        return found

    def _clear_winner(self, column: Column) -> str | None:
        metric = metric_for(column.metric)
        values = {model: found.value for model in self.spec.models if (found := self.estimate(model, column))}
        if len(values) < 2:
            return None
        best = (min if metric.lower_is_better else max)(values, key=lambda model: values[model])
        duels = [self.paired(best, model, column) for model in values if model != best]
        met = [duel for duel in duels if duel is not None]
        ahead = all(metric.better(duel.first, duel.second) for duel in met)
        return best if ahead and max(holm([duel.p_value for duel in met])) < ALPHA else None


def _worst(metric: Metric, records: list[Record]) -> Scores:
    """Per-sample scores in the worst case of several protocols."""
    assert isinstance(metric, Mean)
    worst, *others = (metric.scores(record.outcomes) for record in records)
    for other in others:
        mine, theirs = aligned(worst, other)
        worst = Scores(np.sort(worst.samples), np.minimum(mine, theirs))
    return worst


def load_board(name: str, records: Iterable[Path] | None = None) -> Board:
    """Read a board and match it with records (by default those beside its `board.toml`).

    A record fills a cell only if model, data, split and seed are the board's and its protocol digest is that of the
    protocol as it reads today. Records of an older schema fill none; their cells are stale.
    """
    path = board_path(name)
    spec = validate(BoardSpec, load_toml(path), f"board {path}")
    for column in spec.column:
        _require_metric(column, path)
    files = sorted((path.parent / "records").glob(f"*{SUFFIX}")) if records is None else list(records)
    loaded, older = _load(files)
    runs = [
        _run(spec, model, protocol, against, loaded, older)
        for model in spec.models
        for protocol, against in spec.evaluations
    ]
    for against in {run.against for run in runs}:
        _require_one_data_set([run.record for run in runs if run.record and run.against == against])
    _require_one_task(spec, path, [run.record for run in runs if run.record])
    return Board(path.parent.name, spec, tuple(runs))


def _load(files: Iterable[Path]) -> tuple[list[Record], list[dict[str, Any]]]:
    """Load records; of those of an older schema, return what they hold, unchecked."""
    loaded, older = [], []
    for file in files:
        try:
            loaded.append(load_consistent(file))
        except OlderSchemaError as error:
            older.append(error.content)
    return loaded, older


def _require_metric(column: Column, path: Path) -> None:
    metric = metric_for(column.metric)
    for protocol in column.protocols:
        scenario = load_scenario(protocol)[1]
        kind, objection = scenario.kind, metric.objection(scenario)
        if objection or not answers(metric, kind):
            raise BadInputError(
                f"board {path}: column '{column.title}': protocol '{protocol}' ({kind}) has no {column.metric}"
                + (f", since {objection}" if objection else ""),
                fix="" if objection else "see: rbk list metrics",
            )
        if (kind == "ood") != (column.against is not None):
            raise BadInputError(
                f"board {path}: column '{column.title}': against = {column.against!r} with protocol '{protocol}'",
                expected="`against` where images of no known class are to be detected, and only there",
            )
    if metric.needs_reference and column.reference is None:
        raise BadInputError(
            f"board {path}: column '{column.title}': {column.metric} without a reference",
            fix="name one of the models: reference = 'MODEL'",
        )
    if len(column.protocols) > 1 and (not isinstance(metric, Mean) or metric.lower_is_better or column.reference):
        raise BadInputError(
            f"board {path}: column '{column.title}': no worst case of {column.metric} is defined",
            fix="name one protocol",
        )


def _require_one_data_set(records: list[Record]) -> None:
    """Refuse to rank numbers that were not made on the same images."""
    sizes = Counter(record.spec.data.digest for record in records)
    for record in records:
        if len(sizes) > 1 and record.spec.data.digest != sizes.most_common(1)[0][0]:
            raise BadInputError(
                f"record {record.spec.stem()} is of other images than the rest (n = {record.spec.data.n})",
                fix="evaluate every model on the same images",
            )


def _require_one_task(spec: BoardSpec, path: Path, records: list[Record]) -> None:
    """Refuse metrics of several tasks, or of another task than the data's."""
    tasks = {record.spec.data.task for record in records}
    for column in spec.column:
        tasks.add(metric_for(column.metric).task)
        if len(tasks) > 1:
            raise BadInputError(
                f"board {path}: column '{column.title}': {column.metric} beside {' and '.join(sorted(tasks))}",
                expected="metrics of one task, that of the data",
                fix="see: rbk list metrics",
            )


def _run(
    spec: BoardSpec,
    model: str,
    protocol: str,
    against: str | None,
    records: list[Record],
    older: list[dict[str, Any]],
) -> Run:
    _, scenario = load_scenario(protocol)
    data = spec.data if against is None else f"{spec.data}-against-{against.partition(':')[0]}"
    wanted = _Cell(model, data, spec.split, protocol, spec.seed, spec.limit)
    found = [record for record in records if wanted.holds(record.spec.model_dump())]
    current = [record for record in found if record.spec.protocol.digest == scenario.digest()]
    if current:
        return Run(model, protocol, against, "ready", max(current, key=lambda record: record.created))
    stale = found or any(wanted.holds(content.get("spec")) for content in older)
    return Run(model, protocol, against, "stale" if stale else "missing", None)


@dataclass(frozen=True)
class _Cell:
    model: str
    data: str
    split: str
    protocol: str
    seed: int
    limit: int | None

    def holds(self, spec: Any) -> bool:
        """Whether a record's specification, of whatever schema, is of this cell."""
        try:
            data = spec["data"]
            met = (spec["model"]["name"], data["name"], data["split"], spec["protocol"]["name"], spec["seed"])
            return met == (self.model, self.data, self.split, self.protocol, self.seed) and (
                self.limit is None or (data.get("known") or data["n"]) == self.limit
            )
        except (KeyError, TypeError, IndexError):
            return False
