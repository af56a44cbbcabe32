"""Every table in leaderboards/ says what its committed records say, by the code of today."""

import re
from pathlib import Path

import pytest

from robustbench_kpca.protocols import presets
from robustbench_kpca.report.matching import load_board
from robustbench_kpca.report.numbers import csv_text, json_text
from robustbench_kpca.report.render import markdown
from robustbench_kpca.reproduction.pack import Table, load_pack
from robustbench_kpca.reproduction.roles import Roles
from robustbench_kpca.reproduction.steps import board_of
from robustbench_kpca.reproduction.tables import metrics_of

HOME = Path(__file__).parents[2] / "leaderboards"
pytestmark = pytest.mark.slow


def same(board, folder, command):
    for name, made in (("board.csv", csv_text), ("board.json", json_text), ("README.md", markdown)):
        assert (folder / name).read_text() == made(board), f"{folder / name} is not what its records say: {command}"


@pytest.mark.parametrize("name", sorted(presets.find("leaderboards")))
def test_a_board_is_what_its_records_say(name):
    same(load_board(name), HOME / name, f"rbk board render {name}")


@pytest.mark.parametrize("name", sorted(presets.find("packs")))
def test_the_tables_of_a_pack_are_what_its_records_say(name):
    folder = HOME / name
    scale = re.search("--scale ([a-z]+)", (folder / "README.md").read_text())[1]
    title, pack, items = load_pack(str(folder))
    roles = Roles(title, pack, scale, folder, {}, {}, metrics=metrics_of(items.values()))
    tables = {key: item for key, item in items.items() if isinstance(item, Table) and (folder / key).is_dir()}
    for key, item in tables.items():
        same(board_of(key, item, roles), folder / key, f"rbk reproduce {name} --scale {scale} -o {folder} --pages")
