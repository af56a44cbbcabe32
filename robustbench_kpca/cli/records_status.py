"""`rbk records status`: how far unfinished records are, who works on them, and how long they will take."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Json

if TYPE_CHECKING:
    from robustbench_kpca.evaluation.unfinished import Unfinished


def status(
    folder: Annotated[Path, typer.Argument(help="Folder that `rbk eval --out FOLDER` writes.")],
    json: Json = False,
) -> None:
    """Show how far unfinished records are: shards done, running, waiting and failed, time left, and every process.

    The time left follows from the shards that are finished, or from the samples where one process works alone; it is
    `?` until there are any. Finished records are counted; `rbk records show` prints them.
    """
    from robustbench_kpca.evaluation.unfinished import below, unfinished
    from robustbench_kpca.records.record import SUFFIX

    found = unfinished(folder)
    records = sum(path.name.endswith(SUFFIX) for path in below(folder))
    if json:
        _console.show_json({"records": records, "unfinished": [_content(one) for one in found]})
        return
    if found:
        header = ("Model", "Data", "Protocol", "samples", "done", "running", "waiting", "failed", "left", "")
        _console.show_table("", header, [_row(one) for one in found])
    workers = [
        (one.stem, f"{who.host} {who.pid}", shard, who.since, f"{who.done}/{who.rows}", _rate(who.per_second))
        for one in found
        for shard, who in one.running.items()
    ]
    if workers:
        _console.show_table("", ("Record", "Process", "Shard", "since", "samples", "a second"), workers)
    for one in found:
        for shard, why in one.failed.items():
            _console.note(f"failed: {one.stem} {shard}: {why}")
    _console.note(f"{records} finished records, {len(found)} unfinished, in {folder}")
    if any(not one.active for one in found):
        _console.note("run the same rbk eval command again to go on; what is finished is kept")


def _row(one: "Unfinished") -> tuple[Any, ...]:
    from robustbench_kpca._core.progress import spell

    state = one.state
    shards = ("-",) * 4 if one.alone else (one.done, len(one.running), _known(one.waiting), len(one.failed))
    if state is None:
        return (one.stem, "?", "?", "?", *shards, "?", one.who)
    samples = f"{100 * state.done / state.rows:.0f} %" if state.rows else "?"
    left = spell(one.left) if one.active else "-"
    return (state.model, state.data, state.protocol, samples, *shards, left, one.who)


def _content(one: "Unfinished") -> dict[str, Any]:
    return {
        "folder": str(one.folder), "record": one.stem, "state": one.state and asdict(one.state), "done": one.done,
        "running": {shard: asdict(who) for shard, who in one.running.items()}, "waiting": one.waiting,
        "failed": dict(one.failed), "active": one.active, "who": one.who, "seconds_left": one.left,
    }  # fmt: skip


def _known(number: int | None) -> str:
    return "?" if number is None else str(number)


def _rate(per_second: float | None) -> str:
    return "?" if per_second is None else f"{per_second:.3g}"
