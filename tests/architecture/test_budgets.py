"""The house does not grow: these numbers only fall, and what raises one names what it removes instead (decision 69)."""

import ast
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


EVALUATION = PACKAGE / "evaluation"
COUNTS = {
    "files of the package": (lambda: len(files(PACKAGE)), 544),
    "lines of the package": (lambda: lines(files(PACKAGE)), 64_560),
    "lines of the tests": (lambda: lines(files(ROOT / "tests")), 43_997),
    "files of evaluation": (lambda: len(files(EVALUATION)), 19),
    "lines of evaluation": (lambda: lines(files(EVALUATION)), 3_660),
    "classes of evaluation": (lambda: classes(files(EVALUATION)), 32),
    "files of recipes": (lambda: len(list(PACKAGE.rglob("training/recipes/**/*.toml"))), 36),
    "lines that are not formatted": (unformatted, 59),
    "scripts of benchmarks": (lambda: len(list((ROOT / "benchmarks").glob("[a-z]*.py"))), 15),
    "decisions": (lambda: len(list((ROOT / "docs" / "decisions").glob("[0-9]*.md"))), 40),
    "words of docs": (lambda: words(ROOT / "docs"), 18_000),
}
"""What is counted, and the most of it. `pytest -s tests/architecture/test_budgets.py` prints what there is."""


@pytest.mark.parametrize("what", COUNTS)
def test_the_house_stays_within_its_budget(what):
    count, most = COUNTS[what]
    print(f"{what}: {count():,} of {most:,}")
    assert count() <= most
