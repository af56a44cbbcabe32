"""The house does not grow unseen: whoever needs more room raises a number here, and says why in the commit."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "robustbench_kpca"


def files(folder):
    return sorted(folder.rglob("*.py"))


def lines(paths):
    return sum(len(path.read_text().splitlines()) for path in paths)


def classes(paths):
    return sum(isinstance(node, ast.ClassDef) for path in paths for node in ast.parse(path.read_text()).body)


def unformatted():
    return sum(path.read_text().count("# fmt: skip") for path in files(PACKAGE))


def words(folder):
    return sum(len(path.read_text().split()) for path in folder.glob("*.md"))


@cache
def bound():
    """How often each of two names, which say nothing, is a parameter or is assigned."""
    nodes = (node for path in files(PACKAGE) for node in ast.walk(ast.parse(path.read_text())))
    names = (
        node.arg if isinstance(node, ast.arg) else node.id
        for node in nodes
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    )
    return Counter(name for name in names if name in ("found", "one"))


EVALUATION = PACKAGE / "evaluation"
COUNTS = {
    "files of the package": (lambda: len(files(PACKAGE)), 577),
    "lines of the package": (lambda: lines(files(PACKAGE)), 68_091),
    "files of evaluation": (lambda: len(files(EVALUATION)), 24),
    "lines of evaluation": (lambda: lines(files(EVALUATION)), 5_078),
    "classes of evaluation": (lambda: classes(files(EVALUATION)), 46),
    "lines that are not formatted": (unformatted, 60),
    "variables `found`": (lambda: bound()["found"], 32),
    "variables `one`": (lambda: bound()["one"], 19),
    "scripts of benchmarks": (lambda: len(list((ROOT / "benchmarks").glob("[a-z]*.py"))), 14),
    "decisions": (lambda: len(list((ROOT / "docs" / "decisions").glob("[0-9]*.md"))), 40),
    "words of docs": (lambda: words(ROOT / "docs"), 18_000),
}
"""What is counted, and the most of it. `pytest -s tests/architecture/test_budgets.py` prints what there is."""


@pytest.mark.parametrize("what", COUNTS)
def test_the_house_stays_within_its_budget(what):
    count, most = COUNTS[what]
    print(f"{what}: {count():,} of {most:,}")
    assert count() <= most
