"""Training: resumed runs equal uninterrupted ones, and a recipe gives its bundled model again."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from robustbench_kpca import evaluate, load_model
from robustbench_kpca.errors import BadInputError, EvaluationError
from robustbench_kpca.models.checkpoint import read_header
from robustbench_kpca.training.loop import shift, train
from robustbench_kpca.training.recipe import load_recipe


@pytest.fixture
def short(tmp_path):
    text = load_recipe("symvit_digits_adv")[2]
    for old, new in (
        ("epochs = 120", "epochs = 3"),
        ("warmup_epochs = 40", "warmup_epochs = 1"),
        ("steps = 5", "steps = 1"),
    ):
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "short.toml"
    path.write_text(text)
    return load_recipe(str(path))


class _StoppedError(Exception):
    pass


def test_a_killed_training_goes_on_bit_identically(tmp_path, short):
    whole = load_file(train(*short, tmp_path / "whole"))

    def stop(epoch):
        if epoch.epoch == 1:
            raise _StoppedError

    with pytest.raises(_StoppedError):
        train(*short, tmp_path / "parts", report=stop)
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["short.resume.pt"]
    seen = []
    resumed = load_file(train(*short, tmp_path / "parts", resume=True, report=lambda epoch: seen.append(epoch.epoch)))
    assert seen == [1, 2]  # epoch 1 had not been saved yet when the run stopped
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert (tmp_path / "parts" / "short.csv").read_text() == (tmp_path / "whole" / "short.csv").read_text()
    assert not list((tmp_path / "parts").glob("*.resume.pt"))


def test_another_recipes_run_is_not_resumed(tmp_path, short):
    name, recipe, text = short

    def stop(epoch):
        if epoch.epoch == 1:
            raise _StoppedError

    with pytest.raises(_StoppedError):
        train(name, recipe, text, tmp_path, report=stop)
    with pytest.raises(BadInputError, match="belongs to another recipe"):
        train(name, recipe, text + "# edited\n", tmp_path, resume=True)


def test_a_diverging_loss_stops_and_keeps_the_last_good_epoch(tmp_path, short):
    name, recipe, text = short
    with pytest.raises(EvaluationError, match="diverged in epoch"):
        train(name, recipe.model_copy(update={"lr": 1e30, "adversarial": None}), text, tmp_path)


def test_shift_moves_every_image_by_its_own_offset():
    images = torch.arange(2 * 16.0).view(2, 1, 4, 4)
    moved = shift(images, torch.tensor([[1, 1], [2, 0]]), 1)
    assert torch.equal(moved[0], images[0])
    assert torch.equal(moved[1, 0, 1:, :3], images[1, 0, :3, 1:])
    assert float(moved[1, 0, 0].abs().sum()) == 0


@pytest.mark.slow
def test_a_recipe_reproduces_its_bundled_model(tmp_path):
    path = train(*load_recipe("symvit_digits"), tmp_path)
    bundled = evaluate(load_model("symvit_digits"), "digits", protocol="clean").metrics["clean_accuracy"].value
    again = evaluate(load_model("symvit_digits", path), "digits", protocol="clean").metrics["clean_accuracy"].value
    assert abs(again - bundled) <= 0.01
    assert float(read_header(path)["test_accuracy"]) == pytest.approx(again, abs=5e-5)
    shutil.rmtree(tmp_path)
