"""`rbk records submit`: check records, make a random part of them again, and write a folder to hand in."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Device, OtherVersions, Quiet, RunCode, SeedOfChoice


def submit(
    folder: Annotated[Path, typer.Argument(help="Folder of records, or one record.")],
    to: Annotated[Path, typer.Option("--to", help="The folder to write; it must not be there yet.")],
    samples: Annotated[int, typer.Option(min=1, help="Samples of each record that are evaluated again.")] = 24,
    seed: SeedOfChoice = None,
    other_versions: OtherVersions = False,
    run_code: RunCode = False,
    device: Device = None,
    quiet: Quiet = False,
) -> int:
    """Write a folder of records to hand in; exit 2, and nothing is written, if a rule is broken or rows differ.

    Exit 3 if a record could not be made again; it is handed in with the reason.

    It checks every rule of every record, evaluates a random choice of samples of each again, and writes the records,
    spot-check.json, SUBMISSION.md (what was checked, and the commands) and SHA256SUMS, which you can sign.
    """
    from robustbench_kpca.evaluation.options import RunOptions
    from robustbench_kpca.records.spot_check import Entry, SpotCheck, exit_code, lines
    from robustbench_kpca.report.consistency import load_all
    from robustbench_kpca.verification.rerun import spot_check
    from robustbench_kpca.verification.stated import Conditions
    from robustbench_kpca.verification.submission import SUMS, require_new, write_submission

    records = load_all([folder])
    require_new(records, to)

    def told(entry: Entry) -> None:
        _console.note(f"{entry.model}  {entry.protocol}  {entry.verdict}", quiet=quiet)

    begun = SpotCheck.begin(samples, seed)
    how = Conditions(RunOptions(device=device, workers=0), other_versions=other_versions, run_code=run_code)
    done = spot_check([(record, ()) for record in records], begun, save=lambda _: None, told=told, how=how)
    files = write_submission(records, done, to)
    _console.say("\n".join(lines(done, records)))
    _console.say(f"{to}: {len(files)} files; {SUMS} is what to sign")
    return exit_code(done, begun, records)
