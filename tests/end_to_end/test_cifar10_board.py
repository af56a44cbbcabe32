"""Numbers of the boards of CIFAR-10, ImageNet and digits are made again by their commands."""

import json
import shlex
from pathlib import Path

import pytest
from board_pages import commands

from robustbench_kpca import load_data, load_model
from robustbench_kpca.cli.main import main
from robustbench_kpca.models.altered import altered
from robustbench_kpca.records.record import find_records, load_record
from robustbench_kpca.report.matching import load_board
from robustbench_kpca.verification.rerun import rerun
from robustbench_kpca.verification.stated import Conditions

BOARD = Path(__file__).parents[2] / "leaderboards" / "cifar10"
MODEL = "symvit_cifar_fast_adv-s1"


def test_the_command_in_a_cell_makes_its_number_again(real_data, tmp_path, monkeypatch, few_resamples):
    """Its weights are in the checkout; the number is that of the record, and of the page."""
    real_data("cifar10/cifar10_test_jpeg.npz")
    monkeypatch.chdir(BOARD.parents[1])
    shown = commands(BOARD / "table-2" / "index.html")
    command = next(one for one in shown if f"--name {MODEL}" in one and "fgsm-linf-4_255" in one)
    assert main([*shlex.split(command)[1:], "--audit", "none", "--out", str(tmp_path), "-q"]) == 0
    (again,) = map(load_record, find_records(tmp_path))
    rows = json.loads((BOARD / "table-2" / "board.json").read_text())["rows"]
    cells = [cell for row in rows for cell in row["cells"] if cell and cell["column"] == "FGSM 4/255"]
    trainings = [cell.get("trainings", {}) for cell in cells]  # a row of one has none
    numbers = {name: value for of_row in trainings for name, value in of_row.items()}
    assert again.metrics["robust_accuracy"].value == pytest.approx(numbers[MODEL], abs=2e-3), "two images of 1,000"


@pytest.mark.slow
@pytest.mark.parametrize(("trained", "number"), [("fast", 31), ("fast_adv", 4)])
def test_without_the_pursuit_few_answers_of_the_compared_networks_change(trained, number, real_data):
    """README and findings add the two to 35; a prediction or two may fall otherwise on another machine."""
    real_data("cifar10/cifar10_test_jpeg.npz")
    images, changed = load_data("cifar10", "test", limit=500).tensors()[0], []
    for weights in (BOARD.parent / "answer-cifar10").glob(f"trainings/rpc_symvit_cifar_{trained}-*/*.safetensors"):
        model = load_model("rpc_symvit_cifar", weights, depth=4, embed_dim=64, num_heads=2, mlp_ratio=2.0, stem="conv")
        with altered(model, "lam=inf"):
            without = model(images).argmax(1)
        changed.append(int((model(images).argmax(1) != without).sum()))
    assert (len(changed), sum(changed)) == (10, pytest.approx(number, abs=2))
    assert all("35 of 10,000" in (BOARD.parents[1] / page).read_text() for page in ("README.md", "docs/findings.md"))


@pytest.mark.slow
def test_a_number_of_the_page_is_made_again(real_data, monkeypatch):
    real_data("models/deit_tiny_patch16_224_fp16.safetensors")
    monkeypatch.chdir(real_data("imagenet_nips2017/labels.csv").parents[1])
    found = next(run.record for run in load_board("imagenet-real").runs if run.evaluation.protocol == "fgsm-linf-2_255")
    again = rerun(found, samples=3, seed=1, how=Conditions(other_versions=True))
    assert len(again.samples) == 3
    assert not again.differing, "the command of the record gives other rows"


def test_the_board_says_which_photographs_are_of_imagenet():
    intro = load_board("imagenet-real").spec.intro
    for words in ("not from ImageNet", "true\nImageNet validation images"):
        assert words in intro


BASELINE = Path(__file__).parents[2] / "leaderboards" / "digits" / "records"


@pytest.mark.slow
@pytest.mark.timeout(1200)  # minutes, where types are checked on a busy machine
def test_the_demo_meets_the_committed_board(tmp_path, capsys, types_unchecked):
    assert main(["board", "demo", "--out", str(tmp_path), "--quiet"]) == 0
    out = capsys.readouterr().out
    for page in ("README.md", "index.html"):
        assert (tmp_path / page).is_file()
        assert str(tmp_path / page) in out
    rules = ["clean_accuracy:-1pp", "robust_accuracy:-2pp", "corruption_accuracy:-1pp"]
    arguments = [word for rule in rules for word in ("--fail", rule)]
    assert main(["check", str(tmp_path / "records"), "--baseline", str(BASELINE), *arguments]) == 0


def test_the_committed_board_holds_what_the_models_promise():
    found = {}
    for path in find_records(BASELINE):
        record = load_record(path)
        found[record.spec.model.name, record.spec.protocol.name] = record.metrics
    models = {model for model, _ in found}
    assert len(models) == 14
    for model in models:
        assert found[model, "clean"]["clean_accuracy"].n >= 360
        assert found[model, "clean"]["clean_accuracy"].value >= 0.95
        attacked = found[model, "pgd20-linf-8_255"]["robust_accuracy"].value
        assert attacked >= 0.60 if model.endswith("_adv") else attacked <= 0.20
