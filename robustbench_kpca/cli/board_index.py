"""`rbk board index`: one page over all boards and packs of a folder; runs no model and does not import torch."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console


def index(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the folders of boards and packs.", show_default=True)
    ] = Path("leaderboards"),
) -> None:
    """Write index.html over all rendered boards and packs of a folder."""
    from robustbench_kpca.report.board_index import write_index

    _console.say(str(write_index(folder)))
