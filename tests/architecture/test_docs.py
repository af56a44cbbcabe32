"""The docs stay short and plain: few pages, few words, a picture on each, short sentences, words of the field."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONTRIBUTORS = {"architecture.md"}
PAGES = sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in CONTRIBUTORS)
README = ROOT / "README.md"
MOST_PAGES, MOST_WORDS, LONGEST_SENTENCE = 12, 18_000, 25
PRIVATE = re.compile(r"\b(arms?|at hand|told apart|lacks?|met)\b", re.IGNORECASE)
INVERTED = re.compile(r"^(Not|Missing) [a-z]+ (is|are) ")


def sentences(page: Path) -> list[str]:
    """Return the sentences of a page, without code, tables, headings and pictures; a link is its text."""
    text = re.sub(r"^```.*?^```|^ {4}\S.*?$", "\n\n", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"!\[.*?\]\(.*?\)", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "CODE", text)
    text = re.sub(r"^(#|\|).*$", "\n", text, flags=re.MULTILINE)
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text)
    blocks = [" ".join(block.split()).lstrip("-* 0123456789.").replace("**", "") for block in blocks]
    return [part for block in blocks for part in re.split(r"(?<=[.!?:;])[)\"]?\s+(?=[^a-z])", block) if part]


def test_there_are_twelve_pages_and_all_are_shown():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2])
    [docs] = [part["Docs"] for part in nav if isinstance(part, dict) and "Docs" in part]
    shown = {page for entry in docs for page in entry.values()}
    assert shown == {f"docs/{page.name}" for page in PAGES}
    assert len(docs) <= MOST_PAGES


def test_the_pages_are_short():
    assert sum(len(page.read_text("utf-8").split()) for page in PAGES) <= MOST_WORDS
    text = README.read_text("utf-8")
    assert len(text.split()) <= 500
    assert len(text.splitlines()) <= 60


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.stem)
def test_a_page_has_a_small_picture(page):
    pictures = re.findall(r"!\[[^\]]{20,}\]\(([^)]+)\)", page.read_text("utf-8"))
    assert pictures, "no picture with a description"
    assert all((page.parent / picture).stat().st_size < 200_000 for picture in pictures)


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.stem)
def test_sentences_are_short_and_plain(page):
    long = [part for part in sentences(page) if len(part.split()) > LONGEST_SENTENCE]
    private = [part for part in sentences(page) if PRIVATE.search(part) or INVERTED.search(part)]
    assert (long, private) == ([], [])


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


def test_the_tests_that_the_list_of_faults_names_are_there():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "tests" / "faults" / "README.md").read_text()))
    defined = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert named - defined == set()
    assert len(named) >= 25
