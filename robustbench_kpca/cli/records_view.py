"""`rbk records view`: a page of single samples; runs no model and does not import torch."""

import time
from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Quiet

EVERY = 5
"""Seconds between two pages of attacks that go on."""


def view(
    records: Annotated[list[Path], typer.Argument(help="Folders with records, or records (*.record.json).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Output file, .html.")] = Path("samples.html"),
    limit: Annotated[int, typer.Option(min=1, max=500, help="Largest number of samples on the page.")] = 500,
    watch: Annotated[
        bool, typer.Option("--watch", help=f"Write the page anew every {EVERY} seconds, until Ctrl-C.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Write a page of single samples, to filter and to compare two models on: rbk records view runs -o samples.html.

    It shows the first twenty samples of an attack with images and largest logits, also while the attack goes on.
    More images are kept by: rbk eval ... --keep-adversarial 100.
    """
    from robustbench_kpca._core.errors import BadInputError

    if out.suffix != ".html":
        raise BadInputError(f"--out {out}", expected="a name that ends in .html")
    left_out = _write(records, out, limit, EVERY if watch else None)
    if left_out:
        _console.note(f"{left_out} records are not shown: of other data, or with several rows a sample", quiet=quiet)
    _console.say(str(out))
    try:
        while watch:
            time.sleep(EVERY)
            _write(records, out, limit, EVERY)
    except KeyboardInterrupt:
        _write(records, out, limit, None)
        raise


def _write(places: list[Path], out: Path, limit: int, every: int | None) -> int:
    from robustbench_kpca._core.files import write_atomic
    from robustbench_kpca.report.viewer import load_shown, view

    shown, left_out = load_shown(places)
    page, others = view(shown, f"Samples of {places[0].absolute().name}", limit, every)
    write_atomic(out, page.encode())
    return left_out + others
