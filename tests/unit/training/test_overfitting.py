"""Catastrophic overfitting is noticed: a stronger attack on the validation images, its columns, and what is said."""

import pytest
import torch
from stand_ins import few_digits
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.models.bundle import read_header
from robustbench_kpca.report.curves import read_curves
from robustbench_kpca.training.ledger import Options
from robustbench_kpca.training.loop import train
from robustbench_kpca.training.recipe import Adversarial, load_recipe

EPS, STEPS = 8 / 255, 3
STILL = {"steps": 1, "step_size": "1e-6 eps", "random_start": False}  # an attack that does almost nothing
STRONGER = {"steps": STEPS, "step_size": "0.5 eps", "random_start": False}


def settings(most_gap):
    return {
        "norm": "linf", "eps": "8/255", "warmup_epochs": 0, "attack": "pgd", "options": STILL, "held_out": True,
        "stronger": {"attack": "pgd", "options": STRONGER, "most_gap": most_gap},
    }  # fmt: skip


def trained(folder, most_gap, notes):
    """One epoch of almost no change, from a model that resists no attack."""
    changes = {
        "epochs": 1, "warmup_epochs": 0, "lr": 1e-6, "init_checkpoint": "vit_digits", "adversarial": settings(most_gap),
    }  # fmt: skip
    return train(*load_recipe("vit_digits", changes), folder, Options(on_note=notes.append))


def pgd(model, x, y):
    moved = x
    for _ in range(STEPS):
        moved = moved.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(moved), y), moved)
        moved = (x + (moved + EPS / 2 * gradient.sign() - x).clamp(-EPS, EPS)).clamp(0, 1)
    return moved.detach()


def test_a_model_that_resists_the_attack_of_training_only_is_noticed(tmp_path):
    notes = []
    with few_digits(64):
        path = trained(tmp_path, 0.2, notes)
        images, labels = load_data("digits", "val").tensors()
    model = load_model("vit_digits", path)
    (row,) = read_curves(tmp_path / "vit_digits").rows
    right = (model(pgd(model, images, labels)).argmax(1) == labels).double().mean()
    assert row["val_stronger_accuracy"] == pytest.approx(float(right), abs=1e-9)
    assert row["val_adv_accuracy"] == row["val_accuracy"]
    assert row["val_adv_accuracy"] - row["val_stronger_accuracy"] > 0.2
    assert [note for note in notes if "catastrophic overfitting in epoch 1" in note]
    assert read_header(path)["catastrophic_overfitting"].startswith("epoch 1: accuracy")


def test_gaps_are_allowed_or_not_and_of_one_of_two_accuracies(tmp_path):
    notes = []
    with few_digits(16):
        path = trained(tmp_path, 1.0, notes)
    assert not [note for note in notes if "overfitting" in note]
    assert "catastrophic_overfitting" not in read_header(path)
    found = Adversarial(**settings(0.1))
    assert not found.overfitting({"val_adv_accuracy": 0.5, "val_stronger_accuracy": 0.45}, "accuracy")
    assert not found.overfitting({"val_adv_accuracy": 0.3, "val_stronger_accuracy": 0.5}, "accuracy")
    assert "50.0 %" in found.overfitting({"val_adv_accuracy": 0.5, "val_stronger_accuracy": 0.3}, "accuracy")
    assert not found.overfitting({}, "accuracy")


@pytest.mark.parametrize("change", [{"held_out": False}, {"stronger": {"attack": "pgd", "options": {}}}])
def test_half_a_table_is_refused(change):
    with pytest.raises(BadInputError, match="stronger"):
        load_recipe("vit_digits", {"adversarial": settings(0.1) | change})


def test_options_that_the_stronger_attack_does_not_have_are_refused_before_training(tmp_path):
    table = settings(0.1) | {"stronger": {"attack": "pgd", "options": {"step": 3}, "most_gap": 0.1}}
    with few_digits(16), pytest.raises(BadInputError, match="pgd"):
        train(*load_recipe("vit_digits", {"adversarial": table}), tmp_path)
    assert not list(tmp_path.glob("*.csv"))
