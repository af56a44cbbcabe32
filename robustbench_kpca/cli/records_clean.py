"""`rbk records clean`: delete what nobody needs any more."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli import _console

if TYPE_CHECKING:
    from robustbench_kpca.records.unfinished import Leftover


def clean(
    folder: Annotated[Path, typer.Argument(help="Folder that `rbk eval --out FOLDER` or `rbk train` writes.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")] = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Delete what there is of unfinished records, too: their work is lost."),
    ] = False,
) -> None:
    """Delete shards of finished records, stale shards, and what killed processes left; say which.

    Stale shards were made with other versions of packages, another number of threads or other code than those of a
    later attempt. Records are never deleted, nor what a process works on.
    """
    from robustbench_kpca.records.unfinished import leftovers

    useless = leftovers(folder, everything=everything)
    kept = {} if dry_run else {leftover: why for leftover in useless if (why := _kept(leftover))}
    for leftover in useless:
        verb = "would delete" if dry_run else "kept" if leftover in kept else "deleted"
        shards = f" ({leftover.shards} shards)" if leftover.shards else ""
        _console.note(f"{verb} {leftover.path.name}{shards}: {kept.get(leftover, leftover.why)}")
    if not useless:
        _console.note(f"nothing to delete in {folder}")


def _kept(leftover: "Leftover") -> str | None:
    """Delete what is left over; return why it was not deleted."""
    from robustbench_kpca.records.unfinished import delete

    try:
        delete(leftover)
    except BadInputError as error:
        return str(error)
    return None
