"""`rbk records view`: a page of single samples; runs no model and does not import torch."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Quiet


def view(
    records: Annotated[list[Path], typer.Argument(help="Folders with records, or records (*.record.json).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Output file, .html.")] = Path("samples.html"),
    quiet: Quiet = False,
) -> None:
    """Write a page of single samples, to filter and to compare two models on: rbk records view runs -o samples.html.

    It shows the images that were kept: rbk eval ... --keep-adversarial 20.
    """
    from robustbench_kpca._core.errors import BadInputError
    from robustbench_kpca._core.files import write_atomic
    from robustbench_kpca.report.viewer import load_shown, view

    if out.suffix != ".html":
        raise BadInputError(f"--out {out}", expected="a name that ends in .html")
    shown, not_shown = load_shown(records)
    page, of_other_data = view(shown, f"Samples of {records[0].absolute().name}")
    write_atomic(out, page.encode())
    if left_out := not_shown + of_other_data:
        _console.note(f"{left_out} records are not shown: of other data, or with several rows a sample", quiet=quiet)
    _console.say(str(out))
