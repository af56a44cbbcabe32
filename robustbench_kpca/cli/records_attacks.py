"""`rbk records attacks`: attacks that search the closest adversarial image, compared on the same networks."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Json


def attacks(
    records: Annotated[list[Path], typer.Argument(help="Records (*.record.json), or folders with records.")],
    json: Json = False,
) -> None:
    """Rank attacks by local optimality: how near their distances are to the least that any of them found.

    1 is never beaten, 0 breaks nothing (AttackBench, arXiv:2404.19460). Passes stand beside it: compare attacks that
    spent as many. Over several networks the mean follows.
    """
    from dataclasses import asdict

    from robustbench_kpca.report.consistency import load_all
    from robustbench_kpca.report.optimality import global_optimality, qualities

    compared = qualities(load_all(records))
    means = global_optimality(compared)
    if json:
        _console.show_json({"local": [asdict(own) for own in compared], "global": means})
        return
    rows = [
        (own.model, own.attack, "" if own.optimality is None else f"{own.optimality:.3f}", f"{own.median:.3f}",
         f"{100 * own.missed:.1f}", f"{own.passes:.0f}", own.n)
        for own in compared
    ]  # fmt: skip
    heads = ("Model", "Attack", "local optimality", "median distance", "missed (%)", "passes an image", "n")
    _console.show_table("", heads, rows)
    if len({own.model for own in compared}) > 1:
        _console.show_table(
            "", ("Attack", "global optimality"), [(name, f"{mean:.3f}") for name, mean in means.items()]
        )
