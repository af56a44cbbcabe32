"""leaderboards/coverage.md: commands plan, names and files exist, counts are right, and no item is left out."""

import pytest
from coverage_page import ROOT, faults, faults_of, rows, wrong_counts

from robustbench_kpca.protocols import presets
from robustbench_kpca.study.reproduction.pack import load_pack

PAGE = """# A page

| | rows | runs | in part | no | compared | made |
|---|---|---|---|---|---|---|
| A paper | 4 | 2 | 1 | 1 | 1 | 1 |
| all | 4 | 2 | 1 | 1 | 1 | 1 |

## A paper

### Tables

| what | in this project | command | runs | compared | made |
|---|---|---|---|---|---|
| one | `attention/rpc.py::Pursuit` | `rbk eval -m vit_digits -p teo2024-pgd --data imagenet:FOLDER` | yes | `tests/unit/protocols/test_teo2024.py::test_pgd` | – |
| two | `leaderboards/teo2024/` | `rbk reproduce teo2024 --table 2`, `rbk train vit_tiny --set epochs=1` | yes | – | `leaderboards/teo2024/notes.md` |
| three | `metrics/corruption.py::mce` | `rbk diagnose timm:deit_tiny_patch16_224 --claim gamma` | in part: no page | – | in part: one model, `leaderboards/` |
| four | `leaderboards/teo2024/table-11.toml` | `rbk reproduce teo2024 --item table-11` | no: no model | – | – |
"""  # noqa: E501


COVERAGE = (ROOT / "leaderboards" / "coverage.md").read_text("utf-8")


@pytest.mark.parametrize("paper", [*dict.fromkeys(row.paper for row in rows(COVERAGE))])
def test_every_row_is_right(paper):
    assert [fault for row in rows(COVERAGE) if row.paper == paper for fault in faults_of(row)] == []


def test_the_head_counts_the_rows_and_a_small_page_is_right():
    assert wrong_counts(COVERAGE) == []
    assert faults(PAGE) == []
    with pytest.raises(AssertionError, match="5 cells"):
        rows(PAGE.replace("| in part: no page |", "|"))


OF_NO_PAPER = ("answer", "answer-active", "answer-cifar10", "cifar10", "league-digits")


@pytest.mark.parametrize("pack", [name for name in presets.find("packs") if name not in OF_NO_PAPER])
def test_every_item_has_a_row(pack):
    made = {item for row in rows(COVERAGE) for name, item in row.items if name == pack}
    assert made == {*load_pack(pack)[2]}


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("rbk eval -m", "rbk evaluate -m", "No such command"),
        ("teo2024-pgd", "teo2025-pgd", "no protocol named 'teo2025-pgd'"),
        ("-m vit_digits", "-m vit_digit", "no model named 'vit_digit'"),
        ("imagenet:FOLDER", "imagnet:FOLDER", "no data set named 'imagnet'"),
        ("teo2024-pgd", "teo2024-pgd --set epsilon=1/255", "epsilon"),
        ("--table 2", "--table 22", "no item table-22"),
        ("train vit_tiny", "train vit_teeny", "no recipe named 'vit_teeny'"),
        ("--claim gamma", "--claim gama", "no claim named 'gama'"),
        ("--claim gamma", "--protocol saritas", "no procedure named 'saritas'"),
        ("rbk diagnose timm:deit_tiny_patch16_224", "python -m pytest tests/unit/x.py::test_nu", "no tests/unit"),
        ("timm:deit_tiny_patch16_224", "timm:deit_tiny_patch16_225", "timm has no model"),
        ("attention/rpc.py::", "attention/rcp.py::", "no attention/rcp.py"),
        ("::Pursuit", "::Persuit", "no attention/rpc.py::Persuit"),
        ("| in part: no page", "| partly: no page", "state 'partly'"),
        ("| in part: no page", "| in part", "a reason"),
        ("| no: no model", "| no: not built", "no reason"),
        ("| no: no model", "| yes", "the pack says why it cannot be made"),
        ("train vit_tiny --set epochs=1` | yes", "train vit_tiny --data FOLDER` | yes", "nor diagnoses were rehearsed"),
        ("::test_pgd", "::test_pdg", "compared: there is no tests/unit/protocols/test_teo2024.py::test_pdg"),
        (
            "tests/unit/protocols/test_teo2024.py::test_pgd",
            "attention/rpc.py::Pursuit",
            "compared: there is no attention/rpc.py",
        ),
        ("`tests/unit/protocols/test_teo2024.py::test_pgd`", "surely", "compared 'surely' names nothing"),
        ("teo2024/notes.md", "teo2024/note.md", "made: there is no leaderboards/teo2024/note.md"),
        ("`rbk diagnose timm:deit_tiny_patch16_224 --claim gamma`", "none", "neither file nor command"),
        ("| all | 4 | 2 | 1 | 1 | 1 | 1 |", "| all | 4 | 2 | 1 | 1 | 1 | 2 |", "the head counts"),
    ],
)
def test_what_is_planted_is_found(right, wrong, said):
    assert right in PAGE
    assert any(said in fault for fault in faults(PAGE.replace(right, wrong, 1)))
