"""`rbk records card`: write the model card of one model from its records."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console


def card(
    records: Annotated[
        list[Path], typer.Argument(help="Records (*.record.json), or folders with records, of one model.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File, such as README.md; by default print it.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="Hugging Face's name of the task, such as text-classification; by default that of images."),
    ] = None,
) -> None:
    """Write a model card: Markdown with Hugging Face metadata, in which every metric is a result of the model-index."""
    from robustbench_kpca._core.files import write_atomic
    from robustbench_kpca.report.card import card as written
    from robustbench_kpca.report.consistency import load_all

    text = written(load_all(records), task)
    if out is None:
        print(text, end="")
        return
    write_atomic(out, text.encode())
    _console.say(str(out))
