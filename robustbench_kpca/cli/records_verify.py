"""`rbk records verify`: make records, or a part of them, again, and compare; also those of a board, and kept images."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli import _console, _options
from robustbench_kpca.cli._evaluating import given_options, refuse_others
from robustbench_kpca.cli._options import with_run_options

if TYPE_CHECKING:
    from robustbench_kpca.evaluation.options import RunOptions
    from robustbench_kpca.records.record import Record
    from robustbench_kpca.verification.rerun import Rerun
    from robustbench_kpca.verification.stated import Conditions

    Stated = list[tuple[Record, Sequence[str]]]
    """Records, each with the command of the board that shows it."""

SHOWN = 20  # differing rows that are printed; --json has all
SAMPLES = 24
_COMMON = ("records", "run_code", "device", "json", "quiet")
_RUN = ("processes", "executor")
_OF_MODELS = ("model", "checkpoint")
_OF_RECORDS = (*_COMMON, *_OF_MODELS, "samples", "seed", "other_versions", *_RUN)
_OF_IMAGES = (*_COMMON, *_OF_MODELS, "kept_images")
_OF_BOARD = (*_COMMON, "board", "samples", "seed", "other_versions", *_RUN, "fresh")


@with_run_options(*_RUN, "device")
def verify(
    records: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Records (*.record.json), or folders with records; with --board by default its own.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Make only so many samples of each record again, chosen at random; by default all, or {SAMPLES} with "
            "--board.",
            show_default=False,
        ),
    ] = None,
    seed: _options.SeedOfChoice = None,
    kept_images: Annotated[
        bool,
        typer.Option("--kept-images", help="Show the model the adversarial images that were kept; attack nothing."),
    ] = False,
    board: Annotated[
        str | None,
        typer.Option(
            help="Board (a name of `rbk list boards`, or its folder): make its records again with the models that it "
            "names, and keep what came out in its spot-check.json.",
            show_default=False,
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="With --board: forget an earlier check.")] = False,
    other_versions: _options.OtherVersions = False,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model, as in `rbk eval`; by default that of the record.")
    ] = None,
    checkpoint: _options.Checkpoint = None,
    run_code: _options.RunCode = False,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    *,
    options: "RunOptions",
) -> int:
    """Make records again and compare them row by row: exit 0 if equal, 1 if rows differ, 2 if a record cannot be made.

    A record contains the command that made it. Run `rbk records verify` in the folder in which that command was typed.
    With --samples, only a random part is made again, and the last line says how probably this part would have found
    forged rows if a tenth of all rows were forged.

    With --kept-images, forward passes alone compare predictions and distances of the images that `rbk eval
    --keep-adversarial N` kept with the record. Records without such images are skipped.

    With --board, the models are those that the board names, whatever a record's command names, and the board's pages
    show the result. Records that were checked before are skipped, and the exit code is then 3. A spot-check.json that
    came with a board is a statement of its maker; --fresh forgets it. 24 rows find a tenth of forged rows with 92 %.
    """
    names = given_options(verify, vars(options) | locals())
    from robustbench_kpca.verification.stated import Conditions

    how = Conditions(
        options,
        other_versions,
        run_code,
        model=model,
        checkpoint=checkpoint,
    )
    if board is not None:
        refuse_others(names, "--board", _OF_BOARD)
        if len(records or ()) > 1:
            raise BadInputError(f"{len(records or ())} places with --board", expected="one folder of records, or none")
        place = records[0] if records else None
        return _verify_board(board, place, samples or SAMPLES, seed, how=how, fresh=fresh, json=json, quiet=quiet)
    if not records:
        raise BadInputError("nothing to verify", expected="RECORD, or --board BOARD")
    if kept_images:
        refuse_others(names, "--kept-images", _OF_IMAGES)
        return _kept_images(records, how, json=json, quiet=quiet)
    refuse_others(names, "no --board", _OF_RECORDS)
    return _again(records, samples, seed, how, json=json, quiet=quiet)


def _consistent(places: list[Path]) -> "list[tuple[Path, Record]]":
    from robustbench_kpca.records.record import find_records
    from robustbench_kpca.report.consistency import load_consistent

    return [(path, load_consistent(path)) for place in places for path in find_records(place)]


def _again(
    places: list[Path], samples: int | None, seed: int | None, how: "Conditions", *, json: bool, quiet: bool
) -> int:
    from robustbench_kpca.verification.rerun import rerun

    done = {}
    for path, record in _consistent(places):
        name = f"{record.spec.model.name}  {record.spec.protocol.name}"
        with _console.screen(quiet=quiet or json) as on_screen:
            done[path] = rerun(record, samples=samples, seed=seed, how=how, progress=on_screen.start(name))
        if not json:
            _say(name, done[path], quiet=quiet)
    if json:
        _console.show_json([_content(path, again) for path, again in done.items()])
    return 0 if all(again.equal for again in done.values()) else 1


def _content(path: Path, done: "Rerun") -> dict[str, Any]:
    return {
        "record": str(path), "equal": done.equal, "exact": done.exact, "why": done.why, "total": done.total,
        "samples": done.samples, "seed": done.seed, "rows": done.rows, "power": done.power,
        "differing": [{"row": row.row, "values": row.values} for row in done.differing],
    }  # fmt: skip


def _say(name: str, done: "Rerun", *, quiet: bool) -> None:
    from robustbench_kpca.verification.rerun import FORGED

    for row in done.differing[:SHOWN]:
        _console.say(f"differs: {row}")
    if len(done.differing) > SHOWN:
        _console.out().print(f"... and {len(done.differing) - SHOWN} more rows")
    equal = "equal to the last digit" if done.exact else "equal but for rounding"
    verdict = equal if done.equal else f"{len(done.differing)} of {done.rows} rows differ"
    _console.say(f"{name}  {len(done.samples)} of {done.total} samples made again: {verdict}")
    if not done.exact:
        _console.note(f"compared with allowance for rounding: {'; '.join(done.why)}", quiet=quiet)
    if done.seed is not None:
        _console.note(
            f"had {100 * FORGED:.0f} % of the samples been forged, this choice would have held one with probability "
            f"{100 * done.power:.1f} %; the same choice again: --seed {done.seed}",
            quiet=quiet,
        )


def _kept_images(places: list[Path], how: "Conditions", *, json: bool, quiet: bool) -> int:
    from robustbench_kpca.records.images import load_images
    from robustbench_kpca.verification.kept import recheck
    from robustbench_kpca.verification.stated import load_for

    done = {}
    for path, record in _consistent(places):
        if record.images_file is None:
            continue
        images = load_images(path.parent, record.images_file)
        done[path] = recheck(record, images, load_for(record, how), how.run.device)
        for line in () if json else done[path].differences:
            _console.say(line)
        counts = f"{done[path].samples} samples, {len(done[path].differences)} differences"
        _console.note(f"{record.spec.stem()}: {counts}", quiet=quiet or json)
    if not done:
        raise BadInputError("no record with images", fix="evaluate with --keep-adversarial N")
    if json:
        _console.show_json([{"record": str(path)} | asdict(checked) for path, checked in done.items()])
    return 1 if any(checked.differences for checked in done.values()) else 0


def _verify_board(
    board: str, folder: Path | None, samples: int, seed: int | None, how: "Conditions", *,
    fresh: bool, json: bool, quiet: bool,
) -> int:  # fmt: skip
    from robustbench_kpca.records.spot_check import (
        FILE,
        Entry,
        SpotCheck,
        exit_code,
        lines,
        load_spot_check,
        stated_before,
    )
    from robustbench_kpca.verification.rerun import spot_check

    place, stated = _of_board(board, folder)
    path = place / FILE
    before = load_spot_check(path) if path.is_file() and not fresh else SpotCheck.begin(samples, seed)
    if before.samples != samples or seed not in (None, before.seed):
        raise BadInputError(
            f"{path} is of {before.samples} samples a record, with seed {before.seed}",
            fix="add --fresh to replace it, or ask for the same",
        )

    def report(entry: Entry) -> None:
        _console.note(f"{entry.model}  {entry.protocol}  {entry.verdict}", quiet=quiet or json)

    done = spot_check(stated, before, save=lambda check: check.save(path), report=report, how=how)
    records = [record for record, _ in stated]
    if json:
        _console.show_json(done.model_dump(mode="json"))
    else:
        _console.say("\n".join(filter(None, [*lines(done, records), stated_before(before, records)])))
        _console.note(f"kept in {path}; render the pages to show it", quiet=quiet)
    return exit_code(done, before, records)


def _of_board(board: str, folder: Path | None) -> "tuple[Path, Stated]":
    """Return a board's folder, and its records with the commands that it prints for them."""
    from robustbench_kpca.protocols.presets import board_folder
    from robustbench_kpca.records.record import find_records
    from robustbench_kpca.report.commands import command
    from robustbench_kpca.report.matching import load_board

    loaded = load_board(board, None if folder is None else find_records(folder))
    runs = {run.record.spec.stem(): run for run in loaded.runs if run.record is not None}
    return board_folder(board), [
        (run.record, shlex.split(command(loaded.spec, [run]))) for run in runs.values() if run.record is not None
    ]
