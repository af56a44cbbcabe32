"""`rbk clean`: delete what nobody needs any more."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Json


def clean(
    folder: Annotated[Path, typer.Argument(help="Folder that `rbk eval --out FOLDER` or `rbk train` writes.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")] = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Delete the shards and journals of unfinished records, too: their work is lost."),
    ] = False,
    json: Json = False,
) -> None:
    """Delete shards and journals of finished records, stale shards, and what killed processes left; say which.

    Stale shards were made with other versions of packages, another number of threads or other code than those of a
    later attempt. Records are never deleted, nor what a process works on.
    """
    from robustbench_kpca.evaluation.unfinished import delete, leftovers

    found = leftovers(folder, everything=everything)
    gone = {one for one in found if dry_run or delete(one)}
    if json:
        shown = [
            {
                "folder": str(one.folder), "files": [str(path) for path in one.paths], "why": one.why,
                "shards": one.shards, "deleted": one in gone and not dry_run,
            }
            for one in found
        ]  # fmt: skip
        _console.show_json({"deleted": not dry_run, "folders": shown})
        return
    for one in found:
        verb = "would delete" if dry_run else "deleted" if one in gone else "kept, a process works on it now:"
        shards = f" ({one.shards} shards)" if one.shards else ""
        _console.note(f"{verb} {one.folder.name}{shards}: {one.why}")
    if not found:
        _console.note(f"nothing to delete in {folder}")
