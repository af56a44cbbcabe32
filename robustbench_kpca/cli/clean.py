"""`rbk clean`: delete the shards that nobody needs any more."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Json


def clean(
    folder: Annotated[Path, typer.Argument(help="Folder that `rbk eval --processes N --out FOLDER` writes.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Delete the shards of unfinished records, too: their work is lost.")
    ] = False,
    json: Json = False,
) -> None:
    """Delete shards of finished records and stale ones, and say which.

    Stale shards were made with other versions of packages, another number of threads or other code than those of a
    later attempt. Records are never deleted, nor what a process works on.
    """
    from robustbench_kpca.evaluation.shard_folder import leftovers

    found = leftovers(folder, everything=everything)
    for one in [] if dry_run else found:
        shutil.rmtree(one.folder)
    if json:
        shown = [{"folder": str(one.folder), "why": one.why, "shards": one.shards} for one in found]
        _console.show_json({"deleted": not dry_run, "folders": shown})
        return
    for one in found:
        verb = "would delete" if dry_run else "deleted"
        _console.note(f"{verb} {one.folder.name} ({one.shards} shards): {one.why}")
    if not found:
        _console.note(f"nothing to delete in {folder}")
