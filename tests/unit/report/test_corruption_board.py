"""Boards of corrupted and unknown images: errors by a reference, pairs of data, heat maps, the right order."""

import shlex

import pytest
from board_pages import board_text
from stand_ins import corruption_protocol

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.data.pair import Pair
from robustbench_kpca.records.record import find_records, load_record
from robustbench_kpca.report import rows
from robustbench_kpca.report.board_spec import Evaluation
from robustbench_kpca.report.difference import difference_between
from robustbench_kpca.report.matching import load_board
from robustbench_kpca.report.notes import caption, ranking, samples
from robustbench_kpca.report.table import frame, without_numbers
from robustbench_kpca.tasks.classification.pages import PAGES

PROTOCOL = corruption_protocol(["fog", "contrast"], [3, 5], "cifar_c", clean=True)
BOARD = board_text(
    ["vit_digits", "vit_digits_adv"],
    {
        "mCE": ("foggy", "mce", {"reference": "vit_digits"}),
        "Corrupted": ("foggy", "corruption_accuracy"),
        "AUPR": ("ood", "aupr", {"against": "photos"}),
    },
    intro="In `fog`.",
)
MODELS = ("vit_digits", "vit_digits_adv")
pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture(scope="module")
def presets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("presets")
    (folder / "corruptions").mkdir()
    (folder / "corruptions" / "foggy.toml").write_text(PROTOCOL)
    return folder


@pytest.fixture(autouse=True)
def _mine(presets, monkeypatch):
    monkeypatch.setenv("RBK_PRESETS", str(presets))


@pytest.fixture(scope="module")
def records(few_resamples, presets, tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    digits, models = load_data("digits", limit=80), {name: load_model(name) for name in MODELS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RBK_PRESETS", str(presets))
        evaluate(models, digits, protocol="foggy", out=folder)
        evaluate(models, Pair(digits, load_data("photos", limit=40)), protocol="ood", out=folder)
    return folder


def board_of(records, tmp_path, text=BOARD):
    (tmp_path / "mine").mkdir(exist_ok=True)
    (tmp_path / "mine" / "board.toml").write_text(text)
    return load_board(str(tmp_path / "mine"), find_records(records) if records else [])


def test_lower_is_better_and_the_reference_has_a_hundred(records, tmp_path):
    board = board_of(records, tmp_path)
    mce, corrupted, aupr = board.spec.column
    assert board.ranked() == ["vit_digits_adv", "vit_digits"]
    assert board.estimate("vit_digits", mce).value == pytest.approx(1)
    ours, theirs = (
        board.record(model, Evaluation("foggy", "digits", "test")) for model in ("vit_digits_adv", "vit_digits")
    )
    ratios = PAGES.by_corruption(ours)["mean"] / PAGES.by_corruption(theirs)["mean"]
    assert board.estimate("vit_digits_adv", mce).value == pytest.approx(ratios.mean())
    assert board.winners[mce.title] == board.winners[corrupted.title] == ["vit_digits_adv"]
    table = frame(board)
    assert list(table.columns) == ["#", "Model", "mCE ↓", "Corrupted", "AUPR"]
    assert table["mCE ↓"][0].startswith("**")
    assert (
        board.record("vit_digits", Evaluation("ood", "digits", "test", against="photos")).spec.data.name
        == "digits-against-photos"
    )
    assert board.estimate("vit_digits", aupr).n == 120
    assert samples(board).startswith("80 `digits` images (test) and 40 of `photos` in “AUPR”; ")


def test_patches_of_two_photographs_compare_no_rows(records, tmp_path):
    """There is a test over the patches, and the board makes none."""
    board = board_of(records, tmp_path)
    aupr = board.spec.column[-1]
    assert rows.paired(board.metrics["AUPR"], aupr, *(board.seeds(name, aupr) for name in MODELS)) is not None
    assert board.paired(*MODELS, aupr) is difference_between(board, *MODELS, aupr) is None
    assert board.compared["AUPR"] == board.winners["AUPR"] == []
    assert "not compared in “AUPR”" in caption(board)
    sorted_by = board_of(records, tmp_path, BOARD.replace('rank_by = "mCE"', 'rank_by = "AUPR"'))
    assert set(sorted_by.ranks.values()) == {None}
    assert sorted_by.ranked() == sorted(MODELS, key=lambda name: -sorted_by.estimate(name, aupr).value)
    assert list(frame(sorted_by)["#"]) == ["–", "–"]
    assert ranking(sorted_by).startswith("No place")
    asked = '\n[[question]]\nsubject = "vit_digits"\nbaseline = "vit_digits_adv"\nablation = "vit_digits_adv"\n'
    with pytest.raises(BadInputError, match="question about 'AUPR'; expected a column in which rows are compared: mCE"):
        board_of(records, tmp_path, BOARD + asked + 'column = "AUPR"\n')


def test_a_reference_without_record_leaves_its_column_empty(records, tmp_path):
    only = [path for path in find_records(records) if not path.name.startswith("vit_digits__")]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "board.toml").write_text(BOARD)
    board = load_board(str(tmp_path / "mine"), only)
    assert frame(board)["mCE ↓"].tolist() == ["not run"]
    assert "not run" not in frame(board)["Corrupted"].tolist()
    assert without_numbers(board) == ["vit_digits"]


def test_a_record_by_cell(records):
    record = next(
        found
        for path in find_records(records)
        if "foggy" in path.name and path.name.startswith("vit_digits__")
        for found in [load_record(path)]
    )
    listed = PAGES.cells(record)
    assert [(cell["corruption"], cell["severity"]) for cell in listed] == [
        ("none", 0), ("fog", 3), ("fog", 5), ("contrast", 3), ("contrast", 5)
    ]  # fmt: skip
    rows = record.outcomes.where((record.outcomes["corruption"] == "fog") & (record.outcomes["severity"] == 5))
    assert listed[2]["top1"]["value"] == pytest.approx((rows["prediction"] == rows["label"]).mean())
    assert listed[2]["top5"]["value"] == pytest.approx((rows["rank"] < 5).mean())
    fog = PAGES.by_corruption(record).loc["fog"]
    assert fog["mean"] == pytest.approx((fog["3"] + fog["5"]) / 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('against = "photos"', ""), "against"),
        (('protocol = "foggy"\nmetric = "corr', 'against = "photos"\nprotocol = "foggy"\nmetric = "corr'), "against"),
        (('reference = "vit_digits"', 'reference = "nobody"'), "reference = 'nobody'.*vit_digits"),
        (('metric = "aupr"', 'metric = "ece"'), "ece"),
        (('protocol = "foggy"\nmetric = "mce"', 'protocol = ["foggy", "common-corruptions"]\nmetric = "mce"'), "worst"),
    ],
)
def test_boards_that_make_no_sense(change, message, tmp_path):
    assert change[0] in BOARD
    with pytest.raises(BadInputError, match=message):
        board_of(None, tmp_path, BOARD.replace(*change, 1))


def test_the_command_that_the_plan_prints_makes_the_run_ready(tmp_path, capsys, monkeypatch):
    """Also where few images are asked for, of another split."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    text = BOARD.replace('split = "test"', 'split = "val"\nlimit = 20').replace('"vit_digits_adv"]', "]")
    text = text.replace('"vit_digits", ]', '"vit_digits"]')
    (tmp_path / "mine" / "board.toml").write_text(text)
    assert main(["board", "plan", "mine"]) == 0
    for line in capsys.readouterr().out.splitlines():
        if line.startswith(("rbk eval", "rbk --presets")):
            assert main([*shlex.split(line)[1:], "-q"]) == 0
    capsys.readouterr()
    assert main(["board", "plan", "mine"]) == 0
    assert "2 of 2 runs" in capsys.readouterr().out
