"""The comment on a pull request: what `rbk check` found, as Markdown."""

from collections.abc import Sequence

from robustbench_kpca._core.web.marks import plain
from robustbench_kpca.report.compare import Comparison, table

MARK = "<!-- robustbench-kpca -->"
"""First line of a comment, by which the next run finds it."""


def comment(comparisons: Sequence[Comparison]) -> str:
    """Return one line that says the verdict, and a table of all comparisons, regressions first."""
    regressions = sum(done.regression for done in comparisons)
    alpha = comparisons[0].alpha if comparisons else 0
    verdict = (
        f"**{regressions} of {len(comparisons)} comparisons are regressions.**"
        if regressions
        else f"**No regression in {len(comparisons)} comparisons.**"
    )
    rows = table(comparisons).map(lambda cell: plain(str(cell)))
    rule = (
        f"A regression is a drop beyond the allowed points that the paired test on the same samples confirms "
        f"(p < {alpha:g} each)."
    )
    return "\n".join(
        [MARK, f"### Robustness\n\n{verdict}\n", rows.to_markdown(index=False, disable_numparse=True), "", rule, ""]
    )
