"""One picture over all boards: two rows a question, on one axis, in points."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import PERCENT, Metric, metric_for
from robustbench_kpca.report.answers import Duel
from robustbench_kpca.report.cards import forest
from robustbench_kpca.report.render import JSON

Asked = tuple[Metric, dict[str, Any]]
"""The metric of a question, and its answer as in board.json."""


@contextmanager
def rendered(path: Path) -> Iterator[dict[str, Any]]:
    """Give what a board.json holds.

    Raises:
        BadInputError: it is damaged, or lacks what is looked for.

    """
    try:
        yield json.loads(path.read_bytes())
    except (ValueError, KeyError, TypeError):
        raise BadInputError(f"{path} was not written by this version", fix="run: rbk board render NAME") from None


def asked_below(folder: Path) -> list[Asked]:
    """Return the answers of all boards below a folder that are tested, in points, with all trainings evaluated."""
    asked: list[Asked] = []
    for path in sorted([*folder.glob(f"*/{JSON}"), *folder.glob(f"*/*/{JSON}")]):
        with rendered(path) as board:
            metrics = {column["title"]: metric_for(column["metric"]) for column in board["columns"]}
            asked += [(metrics[answer["column"]], answer) for answer in board["answers"]]
    tested = [(metric, answer) for metric, answer in asked if metric.unit.points and answer["against"]]
    return [(metric, answer) for metric, answer in tested if answer["against"]["low"] is not None and _is_whole(answer)]


def _is_whole(answer: dict[str, Any]) -> bool:
    rows = filter(None, (answer, answer["against"], answer["control"]))
    return all(row["trainings"] == row["planned"] for row in rows)


def verdicts(asked: Sequence[Asked]) -> str:
    """Say how many questions have each verdict."""
    counts = Counter(answer["verdict"] for _, answer in asked)
    each = ", ".join(f"{verdict} {count} time{'s' * (count > 1)}" for verdict, count in counts.most_common())
    return f"{len(asked)} question{'s' * (len(asked) > 1)}: {each}." if asked else ""


def overview(asked: Sequence[Asked]) -> str:
    """Draw them, better to the right; return the text of an SVG, empty where there is none."""
    rows = []
    for metric, answer in asked:
        against, control = (None if answer[role] is None else Duel(**answer[role]) for role in ("against", "control"))
        labels = {
            f"{answer['subject']} − {answer['baseline']}\n{answer['column']}, {answer['data']}": against,
            f"− {answer['ablation']} (control)": control,
        }
        rows += [(label, _gain(duel, metric), answer["verdict"]) for label, duel in labels.items() if duel is not None]
    return forest(rows, PERCENT, title="Answers of all boards")


def _gain(duel: Duel, metric: Metric) -> Duel:
    """Return a difference that is above zero for the better."""
    if not metric.lower_is_better or duel.low is None or duel.high is None:
        return duel
    return replace(duel, difference=-duel.difference, low=-duel.high, high=-duel.low)
