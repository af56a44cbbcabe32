"""Training: resumed runs equal uninterrupted ones, and a recipe gives its bundled model again."""

import shutil

import pytest
import torch
from full_disk import full_disk
from safetensors.torch import load_file
from stand_ins import few_digits, short_training

from robustbench_kpca import evaluate, load_model
from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca.models.bundle import read_header
from robustbench_kpca.report.curves import epochs_in
from robustbench_kpca.training.ledger import Options
from robustbench_kpca.training.loop import train
from robustbench_kpca.training.recipe import load_recipe
from robustbench_kpca.training.run import Run

FEW = 150  # two whole batches and a rest


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory):
    return str(short_training(tmp_path_factory.mktemp("recipe") / "short.toml", 3))


@pytest.fixture
def short(recipe_file):
    with few_digits(FEW):
        yield load_recipe(recipe_file)


class _StoppedError(Exception):
    pass


@pytest.fixture(scope="module")
def finished(recipe_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    with few_digits(FEW):
        train(*load_recipe(recipe_file), folder)
    return folder


@pytest.fixture(scope="module")
def interrupted(recipe_file, tmp_path_factory):
    """A folder with the run as it was stopped after its second epoch, before that was saved."""
    folder, save = tmp_path_factory.mktemp("interrupted"), Run.save

    def stop_before_the_second(run):
        if len(run.ledger.history) > 1:
            raise _StoppedError
        save(run)

    with few_digits(FEW), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "save", stop_before_the_second)
        with pytest.raises(_StoppedError):
            train(*load_recipe(recipe_file), folder)
    return folder


@pytest.fixture
def begun(interrupted, tmp_path):
    return shutil.copytree(interrupted, tmp_path / "begun")


def test_a_killed_training_goes_on_bit_identically(finished, begun, short):
    whole = load_file(finished / "short.safetensors")
    assert {path.name for path in begun.iterdir()} == {"short.resume.pt", "short.csv", "short.spent.json"}
    seen = []
    options = Options(resume=True, on_epoch=lambda _, epoch: seen.append(epoch.epoch))
    resumed = load_file(train(*short, begun, options))
    assert seen == [1, 2]  # epoch 1 had not been saved yet when the run stopped
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert (begun / "short.csv").read_text() == (finished / "short.csv").read_text()
    assert not list(begun.glob("*.resume.pt"))


def test_the_scores_of_a_model_that_draws_noise_are_the_same_after_a_stop_before_they_were_made(tmp_path, monkeypatch):
    def stopped(run):
        raise _StoppedError

    short = load_recipe("kep_svgp_vit_digits", {"epochs": 1, "warmup_epochs": 0})
    with few_digits(FEW):
        whole = read_header(train(*short, tmp_path / "whole"))
        with monkeypatch.context() as patch:
            patch.setattr("robustbench_kpca.training.run.Run.finish", stopped)
            with pytest.raises(_StoppedError):
                train(*short, tmp_path / "stopped")
        resumed = read_header(train(*short, tmp_path / "stopped", Options(resume=True)))
    scores = [name for name in whole if name.startswith(("val_", "test_"))]
    assert any("loss" in name for name in scores)
    assert [resumed[name] for name in scores] == [whole[name] for name in scores]


def test_an_epoch_is_kept_before_anybody_is_told_of_it(begun, short):
    """A tracker that cannot be reached ends a training, and must not lose the epoch."""

    def unreachable(_, epoch):
        raise EvaluationError("--log")

    with pytest.raises(EvaluationError):
        train(*short, begun, Options(resume=True, on_epoch=unreachable))
    assert epochs_in(begun / "short.csv") == 2
    seen = []
    train(*short, begun, Options(resume=True, on_epoch=lambda _, epoch: seen.append(epoch.epoch)))
    assert seen == [2]


def test_nothing_is_overwritten_unasked(begun, short):
    name, recipe, text = short
    with pytest.raises(BadInputError, match="--resume"):
        train(*short, begun)
    unfinished = (begun / "short.resume.pt").read_bytes()
    (begun / "short.epoch-009.safetensors").touch()
    with pytest.raises(BadInputError, match="shapes"):
        train(name, recipe.model_copy(update={"data": "shapes"}), text, begun, Options(fresh=True))
    assert (begun / "short.resume.pt").read_bytes() == unfinished, "what cannot be trained destroys nothing"
    path = train(*short, begun, Options(fresh=True))
    assert {path.name for path in begun.iterdir()} == {"short.safetensors", "short.csv", "short.spent.json"}
    done = path.read_bytes()
    seen = []
    assert train(*short, begun, Options(resume=True, on_epoch=lambda *row: seen.append(row))) == path
    assert seen == []
    for again, options in ((text, Options()), (text + "#", Options(resume=True))):
        with pytest.raises(BadInputError, match="--name"):
            train(name, recipe, again, begun, options)
    assert path.read_bytes() == done


def test_weights_that_are_not_finite_are_not_kept(tmp_path, short):
    name, recipe, text = short
    wild = {"lr": 3e38, "weight_decay": 1e9, "optimizer": "sgd", "adversarial": None, "warmup_epochs": 0, "epochs": 1}
    with pytest.raises(EvaluationError, match=r"diverged .*epoch 0"):
        train(name, recipe.model_copy(update=wild | {"batch_size": 5000}), text, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["short.spent.json"], (
        "the time that was lost, and nothing else"
    )


def test_the_last_good_epoch_is_left_by_a_full_disk_and_a_diverging_loss(begun, short):
    last_good = (begun / "short.resume.pt").read_bytes()
    with pytest.raises(EvaluationError, match="cannot write"), full_disk():
        train(*short, begun, Options(resume=True))
    assert {path.name for path in begun.iterdir()} == {"short.resume.pt", "short.csv", "short.spent.json"}
    assert (begun / "short.resume.pt").read_bytes() == last_good
    name, recipe, text = short
    last_good = (begun / "short.resume.pt").read_bytes()
    with pytest.raises(EvaluationError, match=r"epoch 1 .*short\.resume\.pt"):
        train(name, recipe.model_copy(update={"lr": 1e30}), text, begun, Options(resume=True))
    assert (begun / "short.resume.pt").read_bytes() == last_good


def test_epochs_are_kept_on_request(tmp_path, short):
    train(*short, tmp_path, Options(keep_every=2))
    assert read_header(tmp_path / "short.epoch-002.safetensors")["epoch"] == "2"
    assert not (tmp_path / "short.epoch-001.safetensors").exists()


@pytest.mark.slow
def test_a_recipe_reproduces_its_bundled_model(tmp_path):
    path = train(*load_recipe("symvit_digits"), tmp_path)
    made = [
        evaluate(load_model("symvit_digits", *weights), "digits", protocol="clean", audit=False)
        for weights in ((), (path,))
    ]
    bundled, again = (record.metrics["clean_accuracy"].value for record in made)
    assert abs(again - bundled) <= 0.01
    assert float(read_header(path)["test_accuracy"]) == pytest.approx(again, abs=5e-5)
    shutil.rmtree(tmp_path)
