"""`rbk records curve`: accuracy against eps from one run of an attack that searches the closest adversarial image."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Json


def curve(
    records: Annotated[list[Path], typer.Argument(help="Records (*.record.json), or folders with records.")],
    eps: Annotated[str, typer.Option(help="Values of eps in the norm of the records, such as 1/255,2/255,4/255.")],
    json: Json = False,
) -> None:
    """Print the robust accuracy at every eps, from the distances of one record.

    The records must be of a search for the closest adversarial image, such as fmn-linf-32_255: see attacks/README.md.
    """
    from robustbench_kpca._core.strict import parse_fraction
    from robustbench_kpca.evaluation.caveats import floor
    from robustbench_kpca.metrics import PERCENT
    from robustbench_kpca.report.consistency import load_all
    from robustbench_kpca.report.optimality import accuracies

    budgets = [part.strip() for part in eps.split(",")]
    loaded = load_all(records)
    rows = [
        (record.spec.model.name, record.spec.protocol.name, budget, accuracy)
        for record in loaded
        for budget, accuracy in zip(budgets, accuracies(record, [parse_fraction(own) for own in budgets]), strict=True)
    ]
    for record in loaded:
        if text := floor(record):
            _console.note(f"{record.spec.model.name}  {record.spec.protocol.name} {text}")
    if json:
        keys = ("model", "protocol", "eps")
        _console.show_json([dict(zip(keys, row, strict=False)) | vars(row[3]) for row in rows])
        return
    shown = [
        (*names, PERCENT.number(accuracy.value), PERCENT.interval(accuracy.low, accuracy.high), accuracy.n)
        for *names, accuracy in rows
    ]
    _console.show_table("", ("Model", "Protocol", "eps", "robust accuracy (%)", "95 % interval", "n"), shown)
