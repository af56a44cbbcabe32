"""`rbk doctor`: check whether an attack, a corruption, an attention or a metric keeps its promises."""

from typing import Annotated

import typer

from robustbench_kpca.cli import _console


def doctor(
    member: Annotated[
        str, typer.Argument(help="FILE.py:OBJECT, package.module:OBJECT, or a name of `rbk list attacks` and the like.")
    ],
    set_: Annotated[
        list[str], typer.Option("--set", help="KEY=VALUE: set an option of an attack or an attention. Repeatable.")
    ] = [],  # noqa: B006 (typer reads the default)
) -> int:
    """Check the promises of your own attack, corruption, attention or metric; exit 1 if one is broken.

    An attack, for example, stays in ball and box, can be resumed, follows its seed and costs what it says. The members
    of the package keep the same promises (docs/extend.md).
    """
    from robustbench_kpca._core.strict import parse_assignments
    from robustbench_kpca.verification.conformance import check_member

    findings = list(check_member(member, **parse_assignments(set_)))
    rows = [("FAILED" if finding.broken else "kept", finding.promise, finding.broken) for finding in findings]
    _console.show_table("", ("Verdict", "Promise", "What was seen"), rows)
    return 1 if any(finding.broken for finding in findings) else 0
