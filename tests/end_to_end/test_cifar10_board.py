"""The board of CIFAR-10: a command of its page makes its number again where the photographs are at hand."""

import json
import shlex
from pathlib import Path

import pytest
from board_pages import commands

from robustbench_kpca import load_data, load_model
from robustbench_kpca.cli.main import main
from robustbench_kpca.models.altered import altered
from robustbench_kpca.records.record import find_records, load_record

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
