"""`rbk status`: how far the unfinished records of a folder are, shard by shard."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Json


def status(
    folder: Annotated[Path, typer.Argument(help="Folder that `rbk eval --processes N --out FOLDER` writes.")],
    json: Json = False,
) -> None:
    """Show which shards of unfinished records are done, running, waiting or failed.

    Only evaluations by several processes have shards. Finished records are counted; `rbk records show` prints them.
    """
    from robustbench_kpca.evaluation.shard_folder import unfinished
    from robustbench_kpca.records.record import SUFFIX

    found = unfinished(folder)
    records = sum(1 for _ in folder.rglob(f"*{SUFFIX}"))
    if json:
        shown = [
            {
                "folder": str(one.folder), "state": one.state and asdict(one.state), "done": one.done,
                "running": dict(one.running), "failed": dict(one.failed), "active": one.active,
            }
            for one in found
        ]  # fmt: skip
        _console.show_json({"records": records, "unfinished": shown})
        return
    rows = []
    for one in found:
        state = one.state
        waiting = "?" if state is None else state.shards - one.done - len(one.running) - len(one.failed)
        place = ("?", "?", "?") if state is None else (state.model, state.data, state.protocol)
        who = "running" if one.active else "stopped"
        rows.append((*place, one.done, len(one.running), waiting, len(one.failed), who))
    if rows:
        _console.show_table("", ("Model", "Data", "Protocol", "done", "running", "waiting", "failed", ""), rows)
    for one in found:
        for shard, why in one.failed.items():
            _console.note(f"failed: {one.stem} {shard}: {why}")
    _console.note(f"{records} finished records, {len(found)} unfinished, in {folder}")
    if any(not one.active for one in found):
        _console.note("run the same rbk eval command again to go on; finished shards are kept")
