"""Find what answers a statement: rows of a table or board, a diagnosis, or a trajectory; and say what it says.

Where a statement is about k columns, each interval has the confidence 1 - 0.05 / k (Bonferroni), so all of them hold at
once with 95 %.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.protocols.presets import board_path, find, pack_path
from robustbench_kpca.records.estimate import CONFIDENCE, Estimate
from robustbench_kpca.records.spec import DataInfo
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_spec import Column
from robustbench_kpca.report.difference import gain
from robustbench_kpca.report.matching import load_board
from robustbench_kpca.report.rows import measured
from robustbench_kpca.study.diagnostics.diagnosis import Diagnosis, load_diagnosis
from robustbench_kpca.study.diagnostics.epochs import Course, EpochTerms, Trajectory, load_trajectory
from robustbench_kpca.study.reproduction.pack import Item, Open, ScaleName, Table, load_pack
from robustbench_kpca.study.reproduction.roles import Roles
from robustbench_kpca.study.reproduction.statements import Claimed, Compared, Evidence, Followed
from robustbench_kpca.study.reproduction.tables import board_or_trouble, metrics_of
from robustbench_kpca.tasks import task_named


class Verdict(StrEnum):
    """How a statement and what was measured stand to each other: an interval is compared with a range.

    The statement agrees if the whole interval lies inside the range, does not if it lies outside, and else cannot be
    tested at this size: more samples or trainings are needed.
    """

    agrees = "agrees"
    differs = "does not agree"
    undecided = "not testable at this size"
    missing = "not measured"


def judge(interval: Estimate, least: float | None, most: float | None) -> Verdict:
    """Compare an interval with a range: inside, outside, or neither; ends belong to the range.

    An interval without width decides nothing: it comes of one sample, or of samples that are all alike.
    """
    low, high = -math.inf if least is None else least, math.inf if most is None else most
    if interval.n < 2 or not interval.low < interval.high:
        return Verdict.undecided
    if low <= interval.low and interval.high <= high:
        return Verdict.agrees
    return Verdict.differs if interval.high < low or interval.low > high else Verdict.undecided


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict of a statement about all of several things: it differs where one of them does."""
    for verdict in (Verdict.differs, Verdict.missing, Verdict.undecided):
        if verdict in verdicts:
            return verdict
    return Verdict.agrees


def better(gain: Estimate, by: float) -> Verdict:
    """Judge "better by at least `by`".

    Without a margin, an interval that ends exactly at zero is undecided. A bootstrap ends there where one sample in few
    was lost and none was won: the end is a sample that was not drawn, and no sign that one row is worse.
    """
    if by == 0 and 0.0 in (gain.low, gain.high):
        return Verdict.undecided
    return judge(gain, by, None)


def claimed(evidence: Claimed, diagnosis: Diagnosis) -> tuple[Verdict, str]:
    """Return the verdict of a diagnosis on a claim, or that of a statistic of it against a range, with its numbers."""
    judged = diagnosis.claims.get(evidence.claim)
    if judged is None:
        raise unknown_name(f"claim (of the diagnosis of {diagnosis.model.name})", evidence.claim, diagnosis.claims)
    if not evidence.statistic:
        outcomes = {"supported": Verdict.agrees, "not supported": Verdict.differs, "not testable": Verdict.undecided}
        return outcomes[judged.outcome], judged.why
    measured = judged.statistics.get(evidence.statistic)
    if measured is None:
        raise unknown_name(f"statistic (of {evidence.claim})", evidence.statistic, judged.statistics)
    estimate = measured.estimate
    chance = "" if measured.null is None else f"; by chance {measured.null.chance:.3g}"
    text = f"{measured.what}: {estimate.value:.3g} [{estimate.low:.3g}, {estimate.high:.3g}]{chance}"
    return judge(estimate, evidence.least, evidence.most), text


def moved(epochs: Sequence[EpochTerms], statistic: str, *, up: bool) -> tuple[Verdict, str]:
    """Judge a statistic from the first kept epoch to the last: it has moved where every layer has, the same way."""
    if len(epochs) < 2:
        return Verdict.undecided, "fewer than two epochs"
    first, last = epochs[0], epochs[-1]
    if statistic not in first.by_layer:
        raise unknown_name("statistic of the projection loss", statistic, first.by_layer)
    pairs = list(zip(first.by_layer[statistic], last.by_layer[statistic], strict=True))
    right = sum(after > before if up else after < before for before, after in pairs)
    text = (
        f"{statistic} from {first.mean(statistic):.3g} after epoch {first.epoch} to {last.mean(statistic):.3g} after "
        f"epoch {last.epoch}; {'higher' if up else 'lower'} in {right} of {len(pairs)} layers"
    )
    verdict = Verdict.agrees if right == len(pairs) else Verdict.differs if right == 0 else Verdict.undecided
    return verdict, text


@dataclass(eq=False)
class Results:
    """The items of a pack, and where their results lie; it remembers the boards and other packs that it has read."""

    items: Mapping[str, Item]
    roles: Roles

    def __post_init__(self) -> None:
        self._packs: dict[tuple[str, ScaleName], Results] = {}
        self._boards: dict[str, Board] = {}
        self._tables: dict[str, tuple[Board, str]] = {}

    def of_pack(self, pack: str, scale: ScaleName) -> "Results":
        """Return the results that another pack comes with."""
        if (pack, scale) not in self._packs:
            name, content, items = load_pack(pack)
            roles = Roles(name, content, scale, pack_path(pack).parent, metrics=metrics_of(items.values()))
            self._packs[pack, scale] = Results(items, roles)
        return self._packs[pack, scale]

    def board(self, name: str) -> Board:
        """Return a board that is no item of a pack."""
        if name not in self._boards:
            self._boards[name] = load_board(name)
        return self._boards[name]

    def table(self, name: str) -> tuple[Board, str]:
        """Return the board of an item; where its records cannot be shown, an empty one, and why.

        Raises:
            BadInputError: it is no table.
        """
        item = self.items[name]
        if not isinstance(item, Table):
            raise BadInputError(f"a comparison from the item {name}", expected="a table of a pack, or a board")
        if name not in self._tables:
            self._tables[name] = board_or_trouble(name, item, self.roles)
        return self._tables[name]


DIAGNOSES = "diagnosis"
"""The folder of the diagnoses of a board, one folder a model."""


@dataclass(frozen=True)
class Answer:
    """What one piece of evidence says.

    Attributes:
        verdict: computed from `result`.
        on: the models, and the samples with their number.
        result: the numbers, with intervals.
        folder: folder of the page of the item, board or diagnosis that the numbers are from; None where there is none.
        command: makes that page; empty for the diagnosis of a board, which statements introduce.
    """

    verdict: Verdict
    on: str
    result: str
    folder: Path | None
    command: str


def answer(evidence: Evidence, pack_results: Results) -> Answer:
    """Return what a piece of evidence says: of a pack's own results, or of those that boards and packs come with.

    Raises:
        BadInputError: the evidence names an item, a row, a column, a claim or a statistic that does not exist.
    """
    where = _place(evidence, pack_results)
    if where is None:
        return Answer(Verdict.missing, "", f"there is no {evidence.pack or evidence.board} here", None, "")
    folder, command, results = where
    if isinstance(evidence, Compared):
        return _compared(evidence, folder, command, results)
    stored = folder / (DIAGNOSES if evidence.board else "") / evidence.model
    if not stored.is_dir():
        return Answer(Verdict.missing, evidence.model, "", folder, command)
    if isinstance(evidence, Followed):
        course = _course(load_trajectory(stored), evidence.split)
        verdicts = [moved(course.epochs, name, up=False) for name in evidence.falls]
        verdicts += [moved(course.epochs, name, up=True) for name in evidence.rises]
        on = f"{evidence.model}, {_samples(course.data, course.data.n)}"
        return Answer(
            together([kind for kind, _ in verdicts]), on, "; ".join(text for _, text in verdicts), folder, command
        )
    if evidence.board:
        folder, command = stored, ""
    diagnosis = load_diagnosis(stored)
    verdict, result = claimed(evidence, diagnosis)
    number = diagnosis.protocol.images_of.get(evidence.claim, diagnosis.protocol.images)
    return Answer(verdict, f"{evidence.model}, {_samples(diagnosis.data, number)}", result, folder, command)


def _place(evidence: Evidence, results: Results) -> tuple[Path, str, Results] | None:
    """Return the folder of an item or board, the command that makes it, and its pack; None if they are not here."""
    if evidence.board:
        if evidence.board not in find("leaderboards"):
            return None
        return board_path(evidence.board).parent, f"rbk board render {evidence.board}", results
    if evidence.pack:
        if evidence.pack not in find("packs"):
            return None
        results = results.of_pack(evidence.pack, evidence.scale)
    if evidence.item not in results.items:
        raise unknown_name(f"item (of {results.roles.name})", evidence.item, results.items)
    return results.roles.out / evidence.item, f"{results.roles.command} --item {evidence.item}", results


def _samples(data: DataInfo, number: int) -> str:
    return f"{number} `{data.name}` {task_named(data.task).pages.samples} ({data.split})"


def _course(trajectory: Trajectory, split: str) -> Course:
    for course in trajectory.courses:
        if course.data.split == split:
            return course
    raise unknown_name(f"split (of {trajectory.name})", split, [course.data.split for course in trajectory.courses])


def _board(evidence: Compared, results: Results) -> tuple[Board, tuple[str, str], str]:
    """Return the board of the evidence, the titles of its two rows, and why its records cannot be shown."""
    if evidence.board:
        board, rows = results.board(evidence.board), (evidence.better, evidence.than)
        titles = [row.title for row in board.spec.rows]
        _require(rows, titles, f"row (of board {evidence.board})")
        return board, rows, ""
    (board, trouble), item = results.table(evidence.item), results.items[evidence.item]
    assert not isinstance(item, Open)
    _require((evidence.better, evidence.than), item.arms, f"arm (of {evidence.item})")
    return board, (results.roles.arms[evidence.better].title, results.roles.arms[evidence.than].title), trouble


def _require(names: Sequence[str], accepted: Sequence[str], what: str) -> None:
    for name in names:
        if name not in accepted:
            raise unknown_name(what, name, accepted)


def _compared(evidence: Compared, folder: Path, command: str, results: Results) -> Answer:
    board, rows, trouble = _board(evidence, results)
    if trouble:
        return Answer(Verdict.missing, "", trouble, folder, command)
    by_title = {column.title: column for column in board.spec.column}
    _require(evidence.columns, list(by_title), f"column (of {board.name})")
    columns = [by_title[title] for title in evidence.columns]
    confidence = 1 - (1 - CONFIDENCE) / len(columns)
    gains = [gain(board, *rows, column, confidence) for column in columns]
    untold = [
        _untold(board, rows, column) if estimate is None else ""
        for column, estimate in zip(columns, gains, strict=True)
    ]
    verdicts = [
        better(estimate, evidence.by) if estimate is not None else Verdict.undecided if why else Verdict.missing
        for estimate, why in zip(gains, untold, strict=True)
    ]
    result = _spelt(list(zip(columns, gains, strict=True))) or next(filter(None, untold), "")
    return Answer(together(verdicts), _on(board, rows, columns), result, folder, command)


def _untold(board: Board, rows: tuple[str, str], column: Column) -> str:
    """Return why two rows that have numbers cannot be compared; empty where a number is missing."""
    metric = board.metrics[column.title]
    if metric is None or not all(measured(metric, column, board.trainings(row, column)) for row in rows):
        return ""
    if pieces := column.untested:
        return f"the images of no known class are {pieces}: nothing can be told of other pictures"
    if any(board.is_alone(row, column) for row in rows):
        return "a single training out of several has no spread, so nothing can be told"
    if all(len(board.trainings(row, column)) > 1 for row in rows):
        return "trainings that share fewer than two seeds cannot be compared"
    return "one network and several trainings cannot be compared, since one network has no spread"


def _on(board: Board, rows: tuple[str, str], columns: Sequence[Column]) -> str:
    """Name the rows, with the number of their trainings, and the samples of the first column that was measured."""
    names = [_counted(board, row, columns) for row in rows]
    record = next((run for column in columns for cell in board.trainings(rows[0], column) for run in cell), None)
    data = f"; {_samples(record.spec.data, record.spec.data.n)}" if record is not None else ""
    return f"{names[0]} against {names[1]}{data}"


def _counted(board: Board, title: str, columns: Sequence[Column]) -> str:
    """Name a row, with the number of its trainings where it is to have several."""
    planned = board.planned(title)
    count = max(len(board.trainings(title, column)) for column in columns)
    if planned == 1 or not count:
        return title
    return f"{title} ({count} trainings)" if count == planned else f"{title} ({count} of {planned} trainings)"


def _spelt(gains: Sequence[tuple[Column, Estimate | None]]) -> str:
    """Write up to four gains in full; of more, how many are clear, and the largest gain and loss."""
    measured = [(column, estimate) for column, estimate in gains if estimate is not None]
    if not measured:
        return ""
    texts = [_gain(column, estimate) for column, estimate in measured]
    missing = len(gains) - len(measured)
    if len(gains) <= 4:
        return "; ".join(texts) + (f"; {missing} not measured" if missing else "")
    better = sum(estimate.low > 0 for _, estimate in measured)
    worse = sum(estimate.high < 0 for _, estimate in measured)
    order = sorted(range(len(measured)), key=lambda place: measured[place][1].value)
    return (
        f"of {len(gains)} columns, {better} clearly better, {worse} clearly worse, {missing} not "
        f"measured; from {texts[order[0]]} to {texts[order[-1]]}"
    )


def _gain(column: Column, estimate: Estimate) -> str:
    unit = metric_for(column.metric).unit
    interval = f"[{unit.change(estimate.low)}, {unit.change(estimate.high)}]"
    return f"{column.title}: {unit.change(estimate.value)} {interval}{f' {unit.points}' if unit.points else ''}"
