"""`rbk records rerun`: make a record again, whole or in part, and compare it sample by sample."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Device, Json, Quiet, RunCode, Workers

SHOWN = 20  # differing rows that are printed; --json has all


def rerun(
    record: Annotated[Path, typer.Argument(help="Record (*.record.json).")],
    samples: Annotated[
        int | None,
        typer.Option(
            min=1, help="Make only so many samples again, chosen at random; by default all.", show_default=False
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of that choice; by default a new one each time.", show_default=False)
    ] = None,
    other_versions: Annotated[
        bool,
        typer.Option(
            "--other-versions",
            help="Go on although packages or the processor differ; allow for rounding.",
        ),
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="File with the weights, where it is not where the record's command has it.", show_default=False
        ),
    ] = None,
    run_code: RunCode = False,
    workers: Workers = 0,
    device: Device = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Make a record again and compare it sample by sample: exit 0 if equal, 1 if rows differ, 2 if it cannot be made.

    The command in the record says how; run it in the folder in which that was typed. With --samples, a random part is
    made again, and the probability is printed that it would have found one of a tenth of forged rows.
    """
    from robustbench_kpca.evaluation.rerun import FORGED
    from robustbench_kpca.evaluation.rerun import rerun as remake
    from robustbench_kpca.report.consistency import load_consistent

    loaded = load_consistent(record)
    with _console.progress(quiet=quiet or json) as start:
        done = remake(
            loaded, samples=samples, seed=seed, device=device, workers=workers, other_versions=other_versions,
            checkpoint=checkpoint, run_code=run_code,
            progress=start(f"{loaded.spec.model.name}  {loaded.spec.protocol.name}"),
        )  # fmt: skip
    if json:
        _console.show_json(
            {
                "record": str(record), "equal": done.equal, "exact": done.exact, "why": done.why, "total": done.total,
                "samples": done.samples, "seed": done.seed, "rows": done.rows, "power": done.power,
                "differing": [{"row": one.row, "values": one.values} for one in done.differing],
            }
        )  # fmt: skip
        return 0 if done.equal else 1
    for one in done.differing[:SHOWN]:
        _console.say(f"differs: {one}")
    if len(done.differing) > SHOWN:
        _console.out().print(f"... and {len(done.differing) - SHOWN} more rows")
    how = "equal to the last digit" if done.exact else "equal but for rounding"
    verdict = how if done.equal else f"{len(done.differing)} of {done.rows} rows differ"
    _console.say(f"{len(done.samples)} of {done.total} samples made again: {verdict}")
    if not done.exact:
        _console.note(f"compared with allowance for rounding: {'; '.join(done.why)}", quiet=quiet)
    if done.seed is not None:
        _console.note(
            f"had {100 * FORGED:.0f} % of the samples been forged, this choice would have held one with probability "
            f"{100 * done.power:.1f} %; the same choice again: --seed {done.seed}",
            quiet=quiet,
        )
    return 0 if done.equal else 1
