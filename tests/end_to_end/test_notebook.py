"""The notebook of the docs runs from its first cell to its last, and its page shows what it showed."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "own_network.ipynb"


@pytest.fixture(scope="module")
def cells():
    sys.path.insert(0, str(ROOT / "docs" / "_site"))
    import cells

    return cells


@pytest.mark.usefixtures("fork")
def test_the_notebook_runs(cells, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = cells.execute(cells.load(PAGE))
    plain, hardened = names["records"]
    assert hardened.metrics["robust_accuracy"].value > plain.metrics["robust_accuracy"].value
    assert "hardened" in (tmp_path / "report" / "README.md").read_text()


def test_outputs_of_cells_are_kept_and_what_cells_say(cells):
    notebook = cells.load(PAGE)
    page = cells.markdown(notebook)
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in codes] == [*range(1, len(codes) + 1)]
    assert all("".join(cell["source"]) in page for cell in notebook["cells"])
    assert page.count("<img") == 1
    assert "<table>" in page
    assert PAGE.stat().st_size < 100_000
    table = ["type('T', (), {'_repr_html_': lambda self: '<table></table>'})()"]
    source = [["x = 6 * 7\n", "print(x)\n", "x"], ["x += 1"], table]
    notebook = {"cells": [{"cell_type": "code", "source": text} for text in source]}
    assert cells.execute(notebook)["x"] == 43
    said, value = notebook["cells"][0]["outputs"]
    assert (said["text"], value["data"]["text/plain"]) == (["42\n"], ["42"])
    assert notebook["cells"][1]["outputs"] == []
    assert notebook["cells"][2]["outputs"][0]["data"]["text/html"] == ["<table></table>"]
