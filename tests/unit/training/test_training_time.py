"""The time that trainings took, and what is left of one."""

import time
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from stand_ins import few_digits

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.progress import Spent, read_spent, spent_file, time_left, timed
from robustbench_kpca._core.web.document import Paragraph
from robustbench_kpca._engine.inference.environment import place
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.study.reproduction.cost import document
from robustbench_kpca.study.reproduction.estimate import Estimator, timed_epochs
from robustbench_kpca.study.reproduction.pack import Arm, Cost, Pack, Scale
from robustbench_kpca.study.reproduction.roles import Roles, Training
from robustbench_kpca.study.reproduction.steps import Train
from robustbench_kpca.training import ledger as ledger_room
from robustbench_kpca.training.ledger import Options, resume_file
from robustbench_kpca.training.loop import train
from robustbench_kpca.training.recipe import load_recipe

CPU = place(torch.device("cpu"))


def fail():
    time.sleep(0.005)
    raise KeyboardInterrupt


def test_the_time_of_a_failed_epoch_counts_and_the_epoch_does_not(tmp_path):
    weights, other = tmp_path / "m.safetensors", tmp_path / "n.safetensors"
    with timed(weights, CPU, write=True):
        pass
    first = read_spent(weights)
    assert first.epochs == 1
    with pytest.raises(KeyboardInterrupt), timed(weights, CPU, write=True):
        fail()
    second = read_spent(weights)
    assert second.epochs == 1
    assert second.seconds >= first.seconds + 0.004
    with pytest.raises(KeyboardInterrupt), timed(other, CPU, write=False):
        fail()
    with pytest.raises(BadInputError), timed(other, CPU, write=True):
        raise BadInputError("a batch that is too large")
    assert not spent_file(other).exists()


@pytest.mark.untyped  # a stand-in for a model
@pytest.mark.parametrize(
    ("state", "rows", "left"), [("", 2, 3), ("resume", 2, 1), ("weights", 3, 0), ("weights", 5, 0)]
)
def test_epochs_count_as_done_only_if_the_training_can_go_on_after_them(tmp_path, state, rows, left):
    weights = tmp_path / "m.safetensors"
    weights.with_suffix(".csv").write_text("epoch,loss\n" + "".join(f"{row},1.0\n" for row in range(rows)))
    if state:
        (resume_file(weights) if state == "resume" else weights).touch()
    training = Training("m", "vit_digits", {"epochs": 3}, 0, "", weights)
    assert training.epochs_done() == (rows if state else 0)
    spent_file(weights).write_text(Spent(epochs=2, seconds=20.0, device=CPU[0], processor=CPU[1]).model_dump_json())
    roles = SimpleNamespace(models={"arm": [SimpleNamespace(training=training)]}, load=lambda *asked: "")
    assert Estimator(roles, RunOptions()).seconds(Train(SimpleNamespace(), training)) == 10.0 * left


def test_a_kill_before_the_state_is_written_loses_and_repeats_nothing(tmp_path, monkeypatch):
    """The run ends just before the state of its second epoch: its row and its weights are there, and made again."""
    name, recipe, text = load_recipe("vit_digits", {"epochs": 3, "model_options.depth": 1})
    with few_digits(32):
        whole = train(name, recipe, text, tmp_path / "whole", Options(keep_every=1))
        folder, write, states = tmp_path / "killed", ledger_room.write_atomic, []

        def killed(path, content):
            states.append(path.name)
            if states.count("vit_digits.resume.pt") == 2:
                raise KeyboardInterrupt
            write(path, content)

        monkeypatch.setattr(ledger_room, "write_atomic", killed)
        with pytest.raises(KeyboardInterrupt):
            train(name, recipe, text, folder, Options(keep_every=1))
        monkeypatch.setattr(ledger_room, "write_atomic", write)
        assert len((folder / f"{name}.csv").read_text().splitlines()) == 1 + 2
        assert (folder / f"{name}.epoch-002.safetensors").is_file()
        again = train(name, recipe, text, folder, Options(keep_every=1, resume=True))
    assert (folder / f"{name}.csv").read_text() == (whole.parent / f"{name}.csv").read_text()
    for file in (f"{name}.epoch-001.safetensors", f"{name}.epoch-002.safetensors", again.name):
        found, wanted = load_file(folder / file), load_file(whole.parent / file)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[key], wanted[key]) for key in wanted), file


def test_the_time_of_one_device_says_nothing_about_another(tmp_path):
    weights = tmp_path / "m.safetensors"
    with timed(weights, CPU, write=True):
        pass
    assert read_spent(weights).place == CPU
    with timed(weights, ("GPU", "another"), write=True):
        pass
    assert (read_spent(weights).epochs, read_spent(weights).place) == (2, ("", "")), "two devices, so none is named"


def spent_by(device, seconds, epochs=2):
    return Spent(epochs=epochs, seconds=seconds, cpu_seconds=seconds, device=device, processor="p" if device else "")


@pytest.mark.parametrize(
    ("spent", "per_epoch", "cell"),
    [
        ([spent_by("GPU", 20), spent_by("GPU", 40)], 15.0, "30 s on GPU"),
        ([spent_by("GPU", 20), None], 10.0, "20 s on GPU (1 of 2 timed)"),
        ([spent_by("GPU", 20), spent_by("cpu", 50)], 10.0, "20 s on GPU (1 of 2 timed), 50 s on cpu (1 of 2 timed)"),
        ([spent_by("", 20), None], None, "20 s (1 of 2 timed)"),
        ([None, None], None, "–"),
    ],
)
def test_each_device_has_its_own_mean_time(spent, per_epoch, cell, tmp_path):
    arm = Arm(title="Arm", recipe="vit_digits", seeds=(0, 1))
    scale = Scale(intro="I", arms={"arm": arm})
    pack = Pack(title="T", source="S", intro="I", embedded=scale, paper=scale)
    roles = Roles("own", pack, "embedded", tmp_path, {}, {})
    named = roles.models["arm"]
    for model, one in zip(named, spent, strict=True):
        weights = model.training.weights
        weights.parent.mkdir(parents=True)
        weights.touch()
        if one is not None:
            spent_file(weights).write_text(one.model_dump_json())
    assert time_left(1, *timed_epochs(named[0].training, roles, ("GPU", "p"))) == per_epoch
    item = Cost(kind="cost", title="Cost", intro="All.", arms=("arm",))
    row = document(item, roles, [], Paragraph("")).blocks[0].rows[0]
    assert (row[1], row[4], row[5]) == ("2 of 2", cell, cell)
