"""The figures of a board's corruption protocols: curves over severity, and one heat map per model."""

from dataclasses import dataclass

from robustbench_kpca.protocols.scenario import Corruption
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.heatmap import against_severity, heatmap
from robustbench_kpca.tasks import task_named


@dataclass(frozen=True)
class CorruptionFigures:
    """The figures of one corruption protocol, as SVG text; `error` is what its maps show."""

    title: str
    curves: str
    maps: list[tuple[str, str]]
    error: str


def corruption_figures(board: Board) -> list[CorruptionFigures]:
    """Draw every corruption protocol of a board: the quantity against severity, and each model's errors by cell."""
    found = []
    models = [model for row in board.ranked_rows() for model in row.models]
    for evaluation in board.spec.evaluations:
        scenario = evaluation.resolve()[1]
        records = {model: record for model in models if (record := board.record(model, evaluation))}
        if not isinstance(scenario, Corruption) or not records:
            continue
        pages = task_named(next(iter(records.values())).spec.data.task).pages
        values = {model: pages.along_severity(record) for model, record in records.items()}
        severities = range(max(scenario.levels) + 1)
        curves = {model: [value.get(level) for level in severities] for model, value in values.items()}
        levels = [str(level) for level in scenario.levels]
        maps = []
        for model, record in records.items():
            errors = pages.by_corruption(record)[levels] / pages.unit.scale
            maps.append((model, heatmap(errors, model, pages.error, pages.unit)))
        drawn = against_severity(curves, pages.quantity, pages.unit)
        found.append(CorruptionFigures(f"{scenario.title} ({scenario.made})", drawn, maps, pages.error_title))
    return found
