"""`rbk records status`: how far unfinished records are, who works on them, and how long they will take."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Json

if TYPE_CHECKING:
    from robustbench_kpca.records.unfinished import Unfinished


def status(
    folder: Annotated[Path, typer.Argument(help="Folder that `rbk eval --out FOLDER` writes.")],
    json: Json = False,
) -> None:
    """Show how far unfinished records are: shards done, running, waiting and failed, time left, and every process.

    Without several processes, all samples are one shard. The time left is `?` until a shard, or some samples of a
    single shard, are done. `rbk records show` prints the finished records.
    """
    from robustbench_kpca.records.record import SUFFIX
    from robustbench_kpca.records.unfinished import below, unfinished

    begun = unfinished(folder)
    records = sum(path.name.endswith(SUFFIX) for path in below(folder))
    if json:
        _console.show_json({"records": records, "unfinished": [_content(record) for record in begun]})
        return
    if begun:
        header = ("Model", "Data", "Protocol", "samples", "done", "running", "waiting", "failed", "left", "")
        _console.show_table("", header, [_row(record) for record in begun])
    workers = [
        (record.stem, f"{who.host} {who.pid}", shard, who.since, f"{who.done}/{who.rows}", _rate(who.per_second))
        for record in begun
        for shard, who in record.running.items()
    ]
    if workers:
        _console.show_table("", ("Record", "Process", "Shard", "since", "samples", "a second"), workers)
    for record in begun:
        for shard, why in record.failed.items():
            _console.note(f"failed: {record.stem} {shard}: {why}")
    _console.note(f"{records} finished records, {len(begun)} unfinished, in {folder}")
    if any(not record.active for record in begun):
        _console.note("run the same rbk eval command again to go on; what is finished is kept")


def _row(record: "Unfinished") -> tuple[Any, ...]:
    from robustbench_kpca._core.progress import spell

    state = record.state
    shards = (
        record.done,
        len(record.running),
        "?" if record.waiting is None else str(record.waiting),
        len(record.failed),
    )
    if state is None:
        return (record.stem, "?", "?", "?", *shards, "?", _who(record))
    samples = f"{100 * state.done / state.rows:.0f} %" if state.rows else "?"
    remaining = spell(record.left) if record.active else "-"
    return (state.model, state.data, state.protocol, samples, *shards, remaining, _who(record))


def _content(record: "Unfinished") -> dict[str, Any]:
    return {
        "folder": str(record.folder), "record": record.stem, "state": record.state and asdict(record.state),
        "done": record.done, "running": {shard: asdict(who) for shard, who in record.running.items()},
        "waiting": record.waiting, "failed": dict(record.failed), "active": record.active, "who": _who(record),
        "seconds_left": record.left,
    }  # fmt: skip


def _who(record: "Unfinished") -> str:
    return "running" if record.active else "stopped"


def _rate(per_second: float | None) -> str:
    return "?" if per_second is None else f"{per_second:.3g}"
