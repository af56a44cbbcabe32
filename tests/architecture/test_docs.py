"""The docs are few pages with a picture each, and what they name exists; `test_budgets.py` counts their words."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
CONTRIBUTORS = {"architecture.md"}
READERS = [page for page in PAGES if page.name not in CONTRIBUTORS]
README = ROOT / "README.md"
MOST_PAGES, MOST_LINES = 14, 60


def test_all_pages_are_shown_and_few():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2])
    [docs] = [part["Docs"] for part in nav if isinstance(part, dict) and "Docs" in part]
    shown = {page for entry in docs for page in entry.values()}
    assert shown == {f"docs/{page.name}" for page in READERS}
    assert len(PAGES) <= MOST_PAGES
    assert len(README.read_text("utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("page", [README, *READERS], ids=lambda page: page.stem)
def test_a_page_has_a_small_picture(page):
    pictures = re.findall(r"!\[[^\]]{20,}\]\(([^)]+)\)", page.read_text("utf-8"))
    assert pictures, "no picture with a description"
    assert all((page.parent / picture).stat().st_size < 200_000 for picture in pictures)


def test_pages_that_code_and_boards_name_exist():
    files = [*(ROOT / "robustbench_kpca").rglob("*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/*.py")]
    files += [*ROOT.glob("leaderboards/**/*.toml"), *ROOT.glob("attacks/*.toml"), *ROOT.glob("corruptions/*.toml")]
    named = {(file, name) for file in files for name in re.findall(r"\bdocs/[\w/-]+\.md\b", file.read_text("utf-8"))}
    assert named
    assert not [(file.name, name) for file, name in named if not (ROOT / name).exists()]


def test_modules_that_pages_name_exist():
    """A path such as `report/board.py`, from any folder on; NAME and FILE stand for one of the reader's."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md"), *ROOT.glob("attacks/*.md")]
    pages += [*ROOT.glob("leaderboards/*.md"), *ROOT.glob("leaderboards/*/notes.md"), *ROOT.glob("tests/*/README.md")]
    there = [
        f"/{path.relative_to(ROOT)}"
        for folder in ("robustbench_kpca", "tests", "benchmarks", "docs", "examples", "leaderboards")
        for path in (ROOT / folder).rglob("*.py")
    ]
    named = {(page, name) for page in pages for name in re.findall(r"[\w./]*\w/\w+\.py\b", page.read_text("utf-8"))}
    named = {(page, name) for page, name in named if not re.search("NAME|FILE", name)}
    assert named
    lost = [
        (page.name, name) for page, name in named if not any(path.endswith(f"/{name.lstrip('./')}") for path in there)
    ]
    assert not lost


@pytest.mark.parametrize("page", ["faults/README.md", "mutation/table.md"])
def test_the_tests_that_the_lists_of_faults_name_are_there(page):
    named = set(re.findall(r"(?:`|::)(test_\w+)(?![\w.])", (ROOT / "tests" / page).read_text()))
    defined = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert named - defined == set()
    assert len(named) >= 25
