"""`rbk check`: compare records with baseline records and fail on regressions, for continuous integration."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Json, Quiet


def check(
    records: Annotated[Path, typer.Argument(help="New records: a folder, or one record.")],
    baseline: Annotated[Path, typer.Option(help="Baseline records: a folder, or one record.")],
    fail: Annotated[
        list[str],
        typer.Option(
            help="Largest allowed drop as METRIC:-POINTSpp, such as robust_accuracy:-2pp (percentage points); without "
            "`pp` for a metric that is not in percent. Repeatable."
        ),
    ],
    partial: Annotated[bool, typer.Option(help="Allow baseline records that have no new record.")] = False,
    junit: Annotated[Path | None, typer.Option(help="File for JUnit XML; by default none.")] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(help="File for the table in Markdown, for a comment on a pull request; by default none."),
    ] = None,
    github: Annotated[bool, typer.Option(help="Print annotations for GitHub Actions.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Exit 1 if a metric dropped by more than a rule allows and a paired test confirms the drop (p < 0.05).

    Data, sample ids and protocol must equal those of the baseline. Weights and seed may differ. Of one model's name,
    data and protocol the newest record counts; older ones are named and set aside.
    """
    from dataclasses import asdict

    from robustbench_kpca._core.errors import printable
    from robustbench_kpca._core.files import write_atomic
    from robustbench_kpca.metrics.shared.power import ALPHA
    from robustbench_kpca.records.newest import current, remark
    from robustbench_kpca.report.compare import Rule, annotations, comment, compare, table, unfinished
    from robustbench_kpca.report.compare import junit as junit_xml
    from robustbench_kpca.report.consistency import load_all
    from robustbench_kpca.report.contradictions import require_no_contradiction

    failed, failed_junit = unfinished("rbk check")
    if junit is not None:
        write_atomic(junit, failed_junit)
    if markdown is not None:
        write_atomic(markdown, failed.encode())
    rules = [Rule.parse(text) for text in fail]
    (new, aside), (old, aside_of_old) = (current(load_all([folder])) for folder in (records, baseline))
    aside += aside_of_old
    require_no_contradiction([*new, *old], ())
    comparisons = compare(new, old, rules, partial=partial)
    if junit is not None:
        write_atomic(junit, junit_xml(comparisons))
    if markdown is not None:
        write_atomic(markdown, comment(comparisons, aside).encode())
    regressions = [done for done in comparisons if done.regression]
    if json:
        _console.show_json([asdict(done) | {"regression": done.regression} for done in comparisons])
    elif not quiet or regressions:
        rows = table(comparisons)
        _console.show_frame("", rows)
    for line in annotations(comparisons, baseline) if github else []:
        print(printable(line), file=sys.stderr if json else sys.stdout)
    flipped = sum((done.lost or 0) + (done.gained or 0) for done in comparisons if len(set(done.batch_sizes)) > 1)
    if flipped:
        _console.note(f"{flipped} scores differ between runs of different batch size", quiet=quiet)
    _console.note(remark(aside), quiet=quiet)
    _console.note(
        f"{_console.count(len(regressions), 'regression')} in {_console.count(len(comparisons), 'comparison')} "
        f"(alpha = {ALPHA:g} each)",
        quiet=quiet,
    )
    return 1 if regressions else 0
