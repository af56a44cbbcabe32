"""`rbk board enter`: make an entry of an open board, or check one."""

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli import _console, _options
from robustbench_kpca.cli._evaluating import refuse_others, reporting, show_plan, usable_device

if TYPE_CHECKING:
    from robustbench_kpca.evaluation.options import RunOptions
    from robustbench_kpca.report.entries import Entry

ACCEPTED, REFUSED, DIFFERS, GONE, UNFINISHED = "accepted", "refused", "differs", "gone", "unfinished"
"""Verdicts: nothing is against it; something is; rows differ; weights are gone; the time was up."""
_HOUR = 3600.0


@_options.with_run_options("device", "processes")
def enter(
    entries: Annotated[list[Path], typer.Argument(help="The card entry.toml; with --check folders of entries.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the entry, submissions/NAME; NAME is that of the row."),
    ] = None,
    planned: Annotated[bool, typer.Option("--plan", help="Evaluate nothing; print what it takes.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Say whether entries would be accepted, or every reason.")
    ] = False,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="With --check: make so many random samples of all records again.", show_default=False),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=1, help="With --samples: begin no record after this time; by default an hour."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="With --samples: write spot-check.json, for the marks.")] = False,
    run_code: _options.RunCode = False,
    other_versions: _options.OtherVersions = False,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    *,
    options: "RunOptions",
) -> int:
    """Make an entry of an open board: copy the card, evaluate, audit fully, and check; or check entries.

    A folder that is accepted is handed in as a pull request (leaderboards/open/README.md). The check runs no code of
    the entry without --samples and --run-code. Exit code 2: not accepted; every reason is a line.
    """
    from dataclasses import replace

    from robustbench_kpca.verification.stated import Conditions

    making_again = {"samples": samples, "seconds": seconds, "keep": keep, "run_code": run_code}
    of_again = [name for name, given in (making_again | {"other_versions": other_versions}).items() if given]
    if check:
        refuse_others([name for name, given in {"out": out, "plan": planned}.items() if given], "--check", ())
        refuse_others(of_again if samples is None else (), "--check without --samples", ())
        how = Conditions(replace(options, workers=0), other_versions, run_code)
        found = [
            _checked(folder, samples, seconds or _HOUR, how, keep=keep, quiet=quiet, json=json) for folder in entries
        ]
        if json:
            _console.show_json(found)
        return 0 if all(each["verdict"] == ACCEPTED for each in found) else 2
    refuse_others(of_again, "a card to enter", ())
    if len(entries) != 1 or out is None:
        raise BadInputError("an entry without a folder", expected="rbk board enter entry.toml -o submissions/NAME")
    entry = _copied(entries[0], out)
    _make(entry, replace(options, device=usable_device(options.device)), planned=planned, quiet=quiet, json=json)
    if planned:
        return 0
    made = _checked(out, None, _HOUR, Conditions(), keep=False, quiet=quiet, json=json)
    return 0 if made["verdict"] == ACCEPTED else 2


def _copied(card: Path, out: Path) -> "Entry":
    """Copy a card, and the files beside it that it names, into the folder of the entry; refuse a wrong card first."""
    from robustbench_kpca._core.strict import load_toml, validate
    from robustbench_kpca.report.entries import CARD, NAME, Card, load_entry

    named = validate(Card, load_toml(card), str(card))
    if not NAME.fullmatch(out.resolve().name):
        raise BadInputError(f"folder '{out.name}'", expected="small letters, digits, - and _")
    files = {name: card if name == CARD else card.parent / name for name in named.beside}
    missing = next((str(path) for path in files.values() if not path.is_file()), None)
    if missing is not None:
        raise BadInputError(f"{missing} is missing, which the card names")
    out.mkdir(parents=True, exist_ok=True)
    for name, path in files.items():
        if path.resolve() != (out / name).resolve():
            shutil.copyfile(path, out / name)
    return load_entry(out)


def _make(entry: "Entry", options: "RunOptions", *, planned: bool, quiet: bool, json: bool) -> None:
    from robustbench_kpca.evaluation.execute import execute
    from robustbench_kpca.report.entry_checks import board_of
    from robustbench_kpca.verification.entries import plans

    made = plans(entry, board_of(entry, ()), options)
    if planned:
        show_plan(made, quiet=quiet, json=json)
        return
    for plan in made:
        with reporting(quiet=quiet or json) as reporter:
            execute(plan, reporter)


def _checked(
    folder: Path, samples: int | None, seconds: float, how: Any, *, keep: bool, quiet: bool, json: bool
) -> dict[str, Any]:
    """Check one entry, and print the verdict and the reasons, unless as `json`."""
    from robustbench_kpca.records.spot_check import FILE
    from robustbench_kpca.report.consistency import load_all
    from robustbench_kpca.report.entries import load_entry
    from robustbench_kpca.report.entry_checks import board_of, refusals
    from robustbench_kpca.verification.entries import GoneError, make_again

    reasons, verdict, rows, differing = refusals(folder), REFUSED, 0, 0
    if not reasons and samples is not None:
        entry = load_entry(folder)
        try:
            board = board_of(entry, load_all([folder]))
            again = make_again(
                entry, board, samples, how=how, seconds=seconds, report=partial(_say, quiet=quiet or json)
            )
        except BadInputError as error:
            reasons, verdict = [str(error)], GONE if isinstance(error, GoneError) else REFUSED
        else:
            reasons, rows, differing = list(again.reasons), again.rows, again.differing
            verdict = UNFINISHED if again.unfinished and not reasons else DIFFERS if differing else REFUSED
            if verdict == UNFINISHED:
                reasons = [f"the time was up: of {rows} rows that were made again, {differing} differ"]
            if keep and not reasons:
                again.check.save(folder / FILE)
    verdict = verdict if reasons else ACCEPTED
    name = folder.resolve().name
    for line in () if json else reasons or [verdict]:
        _console.say(f"{name}: {line}")
    return {"entry": name, "verdict": verdict, "rows": rows, "differing": differing, "reasons": reasons}


def _say(made: Any, *, quiet: bool) -> None:
    _console.note(f"{made.protocol}  {made.samples} samples made again: {made.verdict}", quiet=quiet)
