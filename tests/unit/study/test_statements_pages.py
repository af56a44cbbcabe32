"""The pages of the papers' statements say what the committed records and diagnoses say."""

import re
from pathlib import Path

import pytest

from robustbench_kpca._core.web.as_html import html
from robustbench_kpca._core.web.as_markdown import markdown
from robustbench_kpca.protocols import presets
from robustbench_kpca.study.reproduction.evidence import Results
from robustbench_kpca.study.reproduction.pack import load_pack
from robustbench_kpca.study.reproduction.roles import Roles
from robustbench_kpca.study.reproduction.statements import load_statements
from robustbench_kpca.study.reproduction.statements_page import document
from robustbench_kpca.study.reproduction.tables import metrics_of

HERE = Path(__file__).parents[3] / "leaderboards"
WITH = [
    pytest.param(name, marks=[pytest.mark.slow] * (name != "chen2023"))
    for name, path in presets.find("packs").items()
    if (path.parent / "statements.toml").is_file()
]


@pytest.mark.parametrize("name", WITH)
def test_every_statement_finds_its_source_and_the_page_is_up_to_date(name):
    """A misspelt source is an error of `document`; pages are made again and compared."""
    found, home = load_statements(name), HERE / name
    for one in (evidence for statement in found.statement for evidence in statement.evidence):
        known = presets.find("packs") if one.pack else presets.find("leaderboards")
        assert not (one.pack or one.board) or (one.pack or one.board) in known
    pack, content, items = load_pack(str(home))
    roles = Roles(pack, content, "embedded", home, {}, {}, metrics=metrics_of(items.values()))
    made = document(found, Results(items, roles))
    for page, text in (("README.md", markdown(made)), ("index.html", html(made))):
        assert (home / "statements" / page).read_text() == text, (
            f"make it again: rbk reproduce {name} --scale embedded --statements -o leaderboards/{name}"
        )


@pytest.mark.parametrize("name", WITH)
def test_every_number_links_to_a_page_that_is_there(name):
    folder = HERE / name / "statements"
    links = re.findall(r"\]\(([^)]+)\)", (folder / "README.md").read_text())
    links += re.findall(r'<a href="([^"]+)"', (folder / "index.html").read_text())
    assert links
    assert all((folder / link).is_file() for link in links)
