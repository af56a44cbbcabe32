"""Every table in leaderboards/ says what its committed records say, by the code of today."""

import re
from pathlib import Path

import pytest

from robustbench_kpca.protocols import presets
from robustbench_kpca.report.answers import in_families
from robustbench_kpca.report.matching import load_board
from robustbench_kpca.report.render import CSV, JSON, csv_text, html, json_text, markdown
from robustbench_kpca.study.reproduction.pack import Table, load_pack
from robustbench_kpca.study.reproduction.roles import Roles
from robustbench_kpca.study.reproduction.tables import board_of, metrics_of

ROOT, FOLDER = Path(__file__).parents[2], Path("leaderboards")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("types_unchecked")]


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Pages name folders as they are seen from the checkout."""
    monkeypatch.chdir(ROOT)


def undrawn(text):
    """Leave figures out, which versions of matplotlib draw differently, and a plan's commit: a copy may not know it."""
    text = re.sub(r"(By its maker('|&#39;)s history|There is a plan \()[^<\n]*", "", text)
    return re.sub("<svg.*?</svg>", "", text, flags=re.DOTALL)


def same(board, folder, command):
    texts = {CSV: csv_text(board), JSON: json_text(board), "README.md": markdown(board)}
    for name, made in (texts | {"index.html": html(board, folder, (CSV, JSON))}).items():
        written = (folder / name).read_text()
        assert undrawn(written) == undrawn(made), f"{folder / name} is not what its records say: {command}"


@pytest.mark.parametrize("name", sorted(presets.find("leaderboards")))
def test_a_board_is_what_its_records_say(name):
    same(load_board(name), FOLDER / name, f"rbk board render {name}")


@pytest.mark.parametrize("name", sorted(presets.find("packs")))
def test_the_tables_of_a_pack_are_what_its_records_say(name):
    folder = FOLDER / name
    scale = re.search("Made by .*--scale ([a-z]+)", (folder / "README.md").read_text())[1]
    title, pack, items = load_pack(str(folder))
    roles = Roles(title, pack, scale, folder, {}, {}, metrics=metrics_of(items.values()))
    tables = {key: item for key, item in items.items() if isinstance(item, Table) and (folder / key).is_dir()}
    boards = in_families({key: board_of(key, item, roles) for key, item in tables.items()}, pack.families)
    for key, board in boards.items():
        same(board, folder / key, f"rbk reproduce {name} --scale {scale} -o {folder} --pages")
