"""`rbk records view`: a page of single samples; runs no model and does not import torch."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Quiet


def view(
    records: Annotated[list[Path], typer.Argument(help="Folders with records, or records (*.record.json).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Output file, .html.")] = Path("samples.html"),
    limit: Annotated[int, typer.Option(min=1, max=500, help="Largest number of samples on the page.")] = 500,
    quiet: Quiet = False,
) -> None:
    """Write a page of single samples, to filter and to compare two models on: rbk records view runs -o samples.html.

    Images are shown where they were kept: rbk eval ... --keep-adversarial 100.
    """
    from robustbench_kpca._core.errors import BadInputError
    from robustbench_kpca._core.files import write_atomic
    from robustbench_kpca.records.images import load_images
    from robustbench_kpca.records.record import find_records
    from robustbench_kpca.report.consistency import load_consistent
    from robustbench_kpca.report.viewer import Shown
    from robustbench_kpca.report.viewer import view as written

    if out.suffix != ".html":
        raise BadInputError(f"--out {out}", expected="a name that ends in .html")
    shown = []
    for path in [path for place in records for path in find_records(place)]:
        record = load_consistent(path)
        images = None if record.images_file is None else load_images(path.parent, record.images_file)
        shown.append(Shown(record, images))
    page, left_out = written(shown, f"Samples of {records[0].absolute().name}", limit)
    write_atomic(out, page.encode())
    if left_out:
        _console.note(f"{left_out} records are not shown: of other data, or with several rows a sample", quiet=quiet)
    _console.say(str(out))
