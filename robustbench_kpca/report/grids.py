"""The corruption grids behind a board: one figure of curves per protocol, one heat map per model."""

from dataclasses import dataclass

from robustbench_kpca.protocols.scenario import Corruption, Segmentation, load_scenario
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.cells import along_severity, by_corruption
from robustbench_kpca.report.heatmap import accuracy_against_severity, heatmap


@dataclass(frozen=True)
class Grid:
    """The figures of one corruption protocol, as SVG text; `error` is what its maps show."""

    title: str
    curves: str
    maps: list[tuple[str, str]]
    error: str


def corruption_figures(board: Board) -> list[Grid]:
    """Draw every corruption protocol of a board: accuracy against severity, and each model's errors by cell."""
    found = []
    for protocol, against in board.spec.tasks:
        scenario = load_scenario(protocol)[1]
        records = {model: record for model in board.ranked() if (record := board.record(model, protocol, against))}
        if not isinstance(scenario, Corruption | Segmentation) or not scenario.corruptions or not records:
            continue
        right, wrong = ("mIoU", "1 - mIoU") if isinstance(scenario, Segmentation) else ("accuracy", "top-1 error")
        severities = range(max(scenario.severities) + 1)
        accuracy = {model: along_severity(record) for model, record in records.items()}
        curves = {model: [curve.get(level) for level in severities] for model, curve in accuracy.items()}
        levels = [str(level) for level in scenario.severities]
        maps = [
            (model, heatmap(by_corruption(record)[levels] / 100, model, wrong)) for model, record in records.items()
        ]
        drawn = accuracy_against_severity(curves, right)
        found.append(
            Grid(f"{scenario.title} ({scenario.made})", drawn, maps, "Error" if right == "accuracy" else wrong)
        )
    return found
