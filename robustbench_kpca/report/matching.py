"""Match what a board asks for with records: which record fills which cell."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.metrics import Mean, answers, metric_for
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.presets import board_path
from robustbench_kpca.protocols.scenario import Corruption, Scenario
from robustbench_kpca.records.record import SUFFIX, OlderSchemaError, Record
from robustbench_kpca.report.board import Board, Run
from robustbench_kpca.report.board_spec import BoardSpec, Column, Evaluation
from robustbench_kpca.report.consistency import load_consistent
from robustbench_kpca.strict import load_toml, validate


def load_board(name: str, records: Iterable[Path] | None = None) -> Board:
    """Read a board and match it with records (by default those beside its `board.toml`).

    A record fills a cell only if model, data, split and seed are the board's and its protocol digest is that of the
    protocol as it reads today. Records of an older schema fill none; their cells are stale.
    """
    path = board_path(name)
    spec = validate(BoardSpec, load_toml(path), f"board {path}")
    files = sorted((path.parent / "records").glob(f"*{SUFFIX}")) if records is None else list(records)
    name = path.parent.name
    return fill(name, spec, read(files), str(path), f"rbk board render {name}", f"rbk board plan {name}")


Content = Record | dict[str, Any]
"""A record that was checked; of an older schema what its file holds, unchecked."""


def fill(name: str, spec: BoardSpec, contents: Sequence[Content], where: str, remake: str, missing: str) -> Board:
    """Match what a board asks for with records; errors begin with `where`. For `remake` and `missing` see `Board`.

    Raises:
        BadInputError: a column that cannot mean anything, or records that do not belong on one board.

    """
    for column in spec.column:
        _require_metric(spec, column, where)
    known = [(one, one.spec.model_dump()) for one in contents if isinstance(one, Record)]
    older = [one for one in contents if isinstance(one, dict)]
    protocols = {evaluation: evaluation.resolve() for evaluation in spec.evaluations}
    runs = [
        _run(spec.seed, model, evaluation, protocols[evaluation], known, older)
        for model in spec.all_models
        for evaluation in spec.evaluations
    ]
    for samples in {run.evaluation.samples for run in runs}:
        _require_one_data_set([run.record for run in runs if run.record and run.evaluation.samples == samples])
    _require_one_task(spec, where, [run.record for run in runs if run.record])
    return Board(name, spec, tuple(runs), remake, missing)


def read(files: Iterable[Path], known: dict[tuple[Path, int], Content] | None = None) -> list[Content]:
    """Load and check records; those in `known`, by path and time of change, are not read again."""
    found = {} if known is None else known
    keys = [(file, file.stat().st_mtime_ns) for file in files]
    for key in keys:
        if key not in found:
            try:
                found[key] = load_consistent(key[0])
            except OlderSchemaError as error:
                found[key] = error.content
    return [found[key] for key in keys]


def _require_metric(spec: BoardSpec, column: Column, where: str) -> None:
    metric = metric_for(column.metric)
    for needed in spec.needed(column):
        scenario = needed.resolve()[1]
        protocol, kind, objection = needed.protocol, scenario.kind, metric.objection(scenario)
        if objection or not answers(metric, kind):
            raise BadInputError(
                f"board {where}: column '{column.title}': protocol '{protocol}' ({kind}) has no {column.metric}"
                + (f", since {objection}" if objection else ""),
                fix="" if objection else "see: rbk list metrics",
            )
        if (kind == "ood") != (column.against is not None):
            raise BadInputError(
                f"board {where}: column '{column.title}': against = {column.against!r} with protocol '{protocol}'",
                expected="`against` where images of no known class are to be detected, and only there",
            )
    if column.corruption is not None and not _has(column):
        raise BadInputError(
            f"board {where}: column '{column.title}': corruption = '{column.corruption}'",
            expected=f"a corruption of '{column.protocol}'",
        )
    if metric.needs_reference and column.reference is None:
        raise BadInputError(
            f"board {where}: column '{column.title}': {column.metric} without a reference",
            fix="name one of the models: reference = 'MODEL'",
        )
    if len(column.protocols) > 1 and (not isinstance(metric, Mean) or metric.lower_is_better or column.reference):
        raise BadInputError(
            f"board {where}: column '{column.title}': no worst case of {column.metric} is defined",
            fix="name one protocol",
        )


def _has(column: Column) -> bool:
    """Whether every protocol of a column has its corruption."""
    scenarios = [load_scenario(protocol)[1] for protocol in column.protocols]  # eps is of attacks
    return all(isinstance(one, Corruption) and column.corruption in one.names for one in scenarios)


def _require_one_data_set(records: list[Record]) -> None:
    """Refuse to rank numbers that were not made on the same images."""
    sizes = Counter(record.spec.data.digest for record in records)
    for record in records:
        if len(sizes) > 1 and record.spec.data.digest != sizes.most_common(1)[0][0]:
            raise BadInputError(
                f"record {record.spec.stem()} is of other images than the rest (n = {record.spec.data.n})",
                fix="evaluate every model on the same images",
            )


def _require_one_task(spec: BoardSpec, where: str, records: list[Record]) -> None:
    """Refuse metrics of several tasks, or of another task than the data's."""
    tasks = {record.spec.data.task for record in records}
    for column in spec.column:
        tasks.add(metric_for(column.metric).task)
        if len(tasks) > 1:
            raise BadInputError(
                f"board {where}: column '{column.title}': {column.metric} beside {' and '.join(sorted(tasks))}",
                expected="metrics of one task, that of the data",
                fix="see: rbk list metrics",
            )


def _run(
    seed: int,
    model: str,
    evaluation: Evaluation,
    protocol: tuple[str, Scenario],
    records: list[tuple[Record, dict[str, Any]]],
    older: list[dict[str, Any]],
) -> Run:
    label, scenario = protocol
    found = [record for record, content in records if _fills(content, model, evaluation, label, seed)]
    current = [record for record in found if record.spec.protocol.digest == scenario.digest()]
    if current:
        return Run(model, evaluation, "ready", max(current, key=lambda record: record.created))
    stale = found or any(_fills(content.get("spec"), model, evaluation, label, seed) for content in older)
    return Run(model, evaluation, "stale" if stale else "missing", None)


def _fills(spec: Any, model: str, evaluation: Evaluation, label: str, seed: int) -> bool:
    """Whether a record's specification, of whatever schema, is of this evaluation of a model."""
    try:
        data = spec["data"]
        met = (spec["model"]["name"], data["name"], data["split"], spec["protocol"]["name"], spec["seed"])
        wanted = (model, evaluation.recorded_data, evaluation.split, label, seed)
        return met == wanted and (evaluation.limit is None or (data.get("known") or data["n"]) == evaluation.limit)
    except (KeyError, TypeError, IndexError):
        return False
