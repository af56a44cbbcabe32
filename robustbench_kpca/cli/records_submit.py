"""`rbk records submit`: check records, make a random part of them again, and write a folder to hand in."""

import secrets
from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Device, Quiet, RunCode


def submit(
    folder: Annotated[Path, typer.Argument(help="Folder of records, or one record.")],
    to: Annotated[Path, typer.Option("--to", help="The folder to write; it must not be there yet.")],
    samples: Annotated[int, typer.Option(min=1, help="Samples of each record that are evaluated again.")] = 24,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of that choice; by default a new one.", show_default=False)
    ] = None,
    other_versions: Annotated[
        bool,
        typer.Option("--other-versions", help="Go on although packages or the processor differ; allow for rounding."),
    ] = False,
    run_code: RunCode = False,
    device: Device = None,
    quiet: Quiet = False,
) -> int:
    """Write a folder of records to hand in; exit 2, and nothing is written, if a rule is broken or rows differ.

    Exit 3 if a record could not be made again; it is handed in with the reason.

    It checks every rule of every record, evaluates a random choice of samples of each again, and writes the records,
    spot-check.json, SUBMISSION.md (what was checked, and the commands) and SHA256SUMS, which you can sign.
    """
    from robustbench_kpca.evaluation.spot_check import spot_check
    from robustbench_kpca.evaluation.submission import SUMS, require_new, write_submission
    from robustbench_kpca.records.record import Record, find_records
    from robustbench_kpca.records.spot_check import Entry, SpotCheck, exit_code, lines
    from robustbench_kpca.report.consistency import load_consistent

    records = [load_consistent(path) for path in find_records(folder)]
    require_new(records, to)

    def told(record: Record, entry: Entry) -> None:  # noqa: ARG001 (signature of `spot_check`)
        verdict = f"{entry.differing} of {entry.rows} rows differ" if entry.samples else f"not remade: {entry.why}"
        _console.note(f"{entry.model}  {entry.protocol}  {verdict}", quiet=quiet)

    begun = SpotCheck(samples=samples, seed=secrets.randbelow(2**32) if seed is None else seed)
    done = spot_check(
        [(record, ()) for record in records], begun, save=lambda _: None, told=told, device=device,
        other_versions=other_versions, run_code=run_code,
    )  # fmt: skip
    files = write_submission(records, done, to)
    _console.say("\n".join(lines(done, records)))
    _console.say(f"{to}: {len(files)} files; {SUMS} is what to sign")
    return exit_code(done, begun, records)
