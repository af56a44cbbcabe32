"""One picture over all boards: two rows a question, on one axis, in points."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.web.figures import drawing, svg_of
from robustbench_kpca.metrics import Metric, metric_for
from robustbench_kpca.report.answers import Duel
from robustbench_kpca.report.cards import COLOURS, draw_forest
from robustbench_kpca.report.render import JSON

Asked = tuple[Metric, dict[str, Any]]
"""The metric of a question, and its answer as in board.json."""


def found(asked: Sequence[Asked]) -> str:
    """Say how many questions have each verdict."""
    counts = Counter(one["verdict"] for _, one in asked)
    each = ", ".join(f"{verdict} {count} time{'s' * (count > 1)}" for verdict, count in counts.most_common())
    return f"{len(asked)} question{'s' * (len(asked) > 1)}: {each}." if asked else ""


def asked_below(folder: Path) -> list[Asked]:
    """Return the answers of all boards below a folder that are tested, in points."""
    found = []
    for path in sorted([*folder.glob(f"*/{JSON}"), *folder.glob(f"*/*/{JSON}")]):
        try:
            board = json.loads(path.read_bytes())
            metrics = {one["title"]: metric_for(one["metric"]) for one in board["columns"]}
            found += [(metrics[one["column"]], one) for one in board["answers"]]
        except (ValueError, KeyError, TypeError):
            raise BadInputError(f"{path} was not written by this version", fix="run: rbk board render NAME") from None
    return [one for one in found if one[0].unit.points and one[1]["against"] and one[1]["against"]["low"] is not None]


def overview(asked: Sequence[Asked]) -> str:
    """Draw them; return the text of an SVG, empty where there is none."""
    rows: list[tuple[str, Duel]] = []
    colours = []
    for _, one in asked:
        duels = [Duel(**one[which]) for which in ("against", "control") if one[which] and one[which]["low"] is not None]
        for place, duel in enumerate(duels):
            asked_of = f"{one['subject']} − {duel.other}\n{one['column']}, {one['data']}"
            label = f"− {duel.other} (control)" if place else asked_of
            rows.append((label, duel))
            colours.append(COLOURS[one["verdict"]])
    if not rows:
        return ""
    with drawing(
        (3.2 + 0.066 * max(len(part) for label, _ in rows for part in label.split("\n")), 0.6 + 0.32 * len(rows))
    ) as (figure, buffer):
        draw_forest(figure.subplots(), rows, asked[0][0], colours)
    return svg_of(buffer, "Answers of all boards: differences with intervals")
