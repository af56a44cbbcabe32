"""Join tables that arrive as texts, one portion of rows after the other, in the order of one plain run. No torch."""

from collections.abc import Iterable, Sequence

import numpy as np

from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.table import Table

Cell = tuple[str, int]
"""Name of a corruption, and severity."""


def join(texts: Iterable[bytes], table: Table, cells: Sequence[Cell], where: str) -> Outcomes:
    """Return one table of all rows, which does not depend on the portions.

    Args:
        texts: CSV with header, each with the rows of some samples.
        table: the columns.
        cells: in order; within a cell the rows keep the order in which they arrive.
        where: the texts are from, in errors.

    Raises:
        BadInputError: a text is not of this table.

    """
    outcomes = Outcomes.joined([Outcomes.from_text(text, table, where) for text in texts])
    if len(cells) == 1 or "corruption" not in table.columns:
        return outcomes
    places = {cell: place for place, cell in enumerate(cells)}
    names, severity = outcomes.coded("corruption"), outcomes["severity"]
    place = np.array([places[name, level] for name, level in zip(names.text(), severity.tolist(), strict=True)])
    return outcomes.where(np.argsort(place, kind="stable"))
