"""`rbk board spot-check`: evaluate a random choice of every record's samples again, and say so on the board's page."""

import secrets
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Device, Json, Quiet, RunCode

if TYPE_CHECKING:
    from robustbench_kpca.evaluation.requests import ModelRequest
    from robustbench_kpca.records.record import Record

SAMPLES = 24


def spot_check(
    board: Annotated[
        str, typer.Argument(help="Board or pack: a name of `rbk list boards` or `rbk list packs`, or its folder.")
    ],
    samples: Annotated[int, typer.Option(min=1, help="Samples of each record.")] = SAMPLES,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="Seed of the choice; by default a new one, which is written down.", show_default=False
        ),
    ] = None,
    records: Annotated[Path | None, typer.Option(help="Folder of records; by default that of the board.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Begin no record after so many seconds; run again to go on.", min=0)
    ] = None,
    other_versions: Annotated[
        bool,
        typer.Option("--other-versions", help="Go on although packages or the processor differ; allow for rounding."),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget an earlier spot check.")] = False,
    run_code: RunCode = False,
    device: Device = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Evaluate a random choice of every record's samples again: exit 0 if all are equal, 1 if rows differ, else 3.

    What is made again is what the board says: its [[model]], or the bundled weights of a name of the package, whatever
    the command in a record names. The result is spot-check.json beside the board or pack; its pages say what came out,
    and how likely forged rows would have been found. Records that were checked before are not checked again: a file
    that came with a board is a statement of its maker, so exit 3, unless --fresh is given. Exit 3 also if a record
    cannot be made again. Run it in the folder in which the records were made, if their data are yours. 24 rows find a
    tenth of forged ones with 92 %.
    """
    from robustbench_kpca.errors import BadInputError
    from robustbench_kpca.evaluation.spot_check import spot_check as check_all
    from robustbench_kpca.records.record import Record
    from robustbench_kpca.records.spot_check import (
        FILE,
        Entry,
        SpotCheck,
        exit_code,
        lines,
        load_spot_check,
        stated_before,
    )

    folder, found, commands = _of_pack(board, records) or _of_board(board, records)
    path = folder / FILE
    before = load_spot_check(path) if path.is_file() and not fresh else None
    if before is not None and (before.samples != samples or seed not in (None, before.seed)):
        raise BadInputError(
            f"{path} is of {before.samples} samples a record, with seed {before.seed}",
            fix="add --fresh to replace it, or ask for the same",
        )
    if before is None:
        before = SpotCheck(samples=samples, seed=secrets.randbelow(2**32) if seed is None else seed)

    def told(record: Record, entry: Entry) -> None:  # noqa: ARG001 (signature of `spot_check`)
        verdict = f"not remade: {entry.why}" if not entry.samples else f"{entry.differing} of {entry.rows} rows differ"
        _console.note(f"{entry.model}  {entry.protocol}  {verdict}", quiet=quiet or json)

    done = check_all(
        list(zip(found, commands, strict=True)), before, save=lambda one: one.save(path), told=told, seconds=seconds,
        device=device, other_versions=other_versions, run_code=run_code,
    )  # fmt: skip
    if json:
        _console.show_json(done.model_dump(mode="json"))
    else:
        _console.say("\n".join(filter(None, [*lines(done, found), stated_before(before, found)])))
        _console.note(f"kept in {path}; render the pages to show it", quiet=quiet)
    return exit_code(done, before, found)


def _of_board(board: str, records: Path | None) -> "tuple[Path, list[Record], list[list[str]]]":
    """Return a board's folder, its records, and the commands that it prints for them."""
    from robustbench_kpca.protocols.presets import board_folder
    from robustbench_kpca.records.record import find_records
    from robustbench_kpca.report.commands import command
    from robustbench_kpca.report.matching import load_board

    loaded = load_board(board, None if records is None else find_records(records))
    runs = {run.record.spec.stem(): run for run in loaded.runs if run.record is not None}
    found = [run.record for run in runs.values() if run.record is not None]
    return board_folder(board), found, [shlex.split(command(loaded.spec, [run])) for run in runs.values()]


def _of_pack(pack: str, records: Path | None) -> "tuple[Path, list[Record], list[list[str]]] | None":
    """Return a pack's folder, its records, and commands with the models that it says they are of; None: no pack."""
    from robustbench_kpca.evaluation.requests import ModelRequest
    from robustbench_kpca.protocols.presets import find, pack_path
    from robustbench_kpca.records.record import Record, find_records
    from robustbench_kpca.report.matching import read
    from robustbench_kpca.reproduction.pack import PACK
    from robustbench_kpca.reproduction.roles import requests_of

    if pack not in find("packs") and not (Path(pack) / PACK).is_file():
        return None
    folder = pack_path(pack).parent
    where = records or folder / "records"
    found = [one for one in read(find_records(where)) if isinstance(one, Record)]
    models = requests_of(pack, where.parent)
    names = [one.spec.model.name for one in found]
    return (
        folder,
        found,
        [_words(one, models.get(name, ModelRequest(name))) for one, name in zip(found, names, strict=True)],
    )


def _words(record: "Record", model: "ModelRequest") -> list[str]:
    """Return the command that evaluates a model as a record says."""
    from robustbench_kpca.evaluation.command import Command
    from robustbench_kpca.evaluation.requests import DataRequest

    data = record.spec.data
    samples = DataRequest(data.name, data.split, data.known or data.n)
    return list(Command(model, samples, record.spec.protocol.name).words())
