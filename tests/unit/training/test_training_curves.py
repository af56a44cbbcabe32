"""Curves of trainings: their columns mean what they say, several seeds are several runs, and a figure shows them."""

import csv

import pytest
import torch
from safetensors.torch import load_file
from stand_ins import few_digits
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import name_with_seed, without_seed
from robustbench_kpca.cli.main import main
from robustbench_kpca.models.bundle import read_header
from robustbench_kpca.report.curves import Curves, by_recipe, draw_curves, panels_of, read_curves
from robustbench_kpca.training.loop import train
from robustbench_kpca.training.recipe import load_recipe
from robustbench_kpca.training.seeds import parse_seeds, runs_of

FEW = 64
SHORT = {"epochs": 1, "warmup_epochs": 0, "smoothing": 0.1}
FGSM = {"norm": "linf", "eps": "8/255", "warmup_epochs": 9, "attack": "fgsm", "options": {}, "held_out": True}


def last_row(path):
    with path.open() as file:
        return {name: float(value) for name, value in list(csv.DictReader(file))[-1].items() if value}


def test_validation_loss_is_the_mean_cross_entropy_clean_and_attacked(tmp_path):
    """Without smoothing, and at the full radius although eps is still growing."""
    with few_digits(FEW):
        path = train(*load_recipe("vit_digits", SHORT | {"adversarial": FGSM}), tmp_path)
        images, labels = load_data("digits", "val").tensors()
    model = load_model("vit_digits", path)
    row = last_row(tmp_path / "vit_digits.csv")
    x = images.clone().requires_grad_()
    logits = model(x)
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, labels), x)
    attacked = model((images + 8 / 255 * gradient.sign()).clamp(0, 1))
    for kind, found in (("val", logits.detach()), ("val_adv", attacked.detach())):
        assert row[f"{kind}_loss"] == pytest.approx(float(F.cross_entropy(found, labels)), rel=1e-5)
        assert row[f"{kind}_accuracy"] == pytest.approx(float((found.argmax(1) == labels).double().mean()), abs=1e-9)
    assert row["val_adv_loss"] > row["val_loss"]
    assert float(read_header(path)["val_loss"]) == pytest.approx(row["val_loss"], abs=5e-5)


def options(*more):
    sets = [part for key, value in SHORT.items() for part in ("--set", f"{key}={value}")]
    return ["train", "symvit_digits", "-q", *sets, *map(str, more)]


def test_several_seeds_are_runs_of_their_own_and_resumable(tmp_path, capsys):
    several, single = tmp_path / "several", tmp_path / "single"
    with few_digits(FEW):
        assert main(options("--seeds", "1,3", "-o", several)) == 0
        assert main(options("--set", "seed=3", "--name", "one", "-o", single)) == 0
        first, second = (several / f"symvit_digits-s{seed}.safetensors" for seed in (1, 3))
        one, three, alone = (load_file(path) for path in (first, second, single / "one.safetensors"))
        assert all(torch.equal(three[name], alone[name]) for name in alone)
        assert not all(torch.equal(one[name], alone[name]) for name in alone)
        headers = [read_header(path) for path in (first, second)]
        assert headers[0]["recipe_sha256"] == headers[1]["recipe_sha256"]
        assert headers[0]["initial_sha256"] != headers[1]["initial_sha256"]
        assert [header["seed"] for header in headers] == ["1", "3"]
        done = first.read_bytes()
        second.unlink()
        assert main(options("--seeds", "3,1", "-o", several)) == 2  # before any of them starts
        assert not second.exists()
        assert main(options("--seeds", "3,1", "--resume", "-o", several)) == 0
    assert first.read_bytes() == done
    assert all(torch.equal(load_file(second)[name], alone[name]) for name in alone)
    assert "symvit_digits-s1.safetensors exists" in capsys.readouterr().err
    picture = tmp_path / "curves.svg"
    assert (
        main(["images", "draw", "curves", str(first), str(several / "symvit_digits-s3.csv"), "-o", str(picture)]) == 0
    )
    assert "symvit_digits (2 seeds)" in picture.read_text()


def test_the_digest_of_a_recipe(tmp_path):
    plain, seeded, threaded, other = (
        load_recipe("vit_digits", more)[1] for more in ({}, {"seed": 5}, {"threads": 2}, {"lr": 1e-4})
    )
    assert plain.digest({}) == seeded.digest({}) == threaded.digest({})
    assert len({plain.digest({}), other.digest({}), plain.digest({"init_sha256": "0"})}) == 3
    lists = {"a.txt": "cat\ndog\n", "b.txt": "dog\ncat\n", "c.txt": "cat\nowl\n"}
    found = []
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
        found.append(load_recipe("symvit_base", {"images.classes": str(tmp_path / name)})[1].digest({}))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(("text", "seeds"), [("0", [0]), ("0,2, 1", [0, 2, 1]), ("3-5,0", [3, 4, 5, 0])])
def test_seeds_are_numbers_and_ranges(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["a", "1,1", "4-2", "-1"])
def test_other_seeds_are_refused(text):
    with pytest.raises(BadInputError, match="--seeds"):
        parse_seeds(text)


def test_a_seed_is_named_once():
    with pytest.raises(BadInputError, match="--set seed=1"):
        runs_of("vit_digits", {"seed": 1}, "0,1")
    assert [run.name for run in runs_of("vit_digits", {}, "0,1", "mine")] == ["mine-s0", "mine-s1"]
    assert [run.name for run in runs_of("vit_digits", {"seed": 1})] == ["vit_digits"]
    assert without_seed(name_with_seed("vit-s", 12)) == ("vit-s", 12)
    assert without_seed("vit-small") == ("vit-small", None)


def run(name, **columns):
    length = len(next(iter(columns.values())))
    return Curves(name, tuple({"epoch": i} | {key: value[i] for key, value in columns.items()} for i in range(length)))


def test_a_panel_shows_training_and_validation_of_one_score():
    runs = [
        run("a-s0", loss=[2.0, 1.0], train_accuracy=[0.1, 0.5], val_loss=[2.5, 2.0], val_accuracy=[0.2, 0.3]),
        run("a-s1", loss=[2.0, 1.5], val_adv_loss=[3.0, 3.5]),
        run("b", loss=[1.0], val_miou=[0.1]),
    ]
    assert panels_of(runs) == {
        "loss": {"loss": "train_", "val_loss": "val_", "val_adv_loss": "val_adv_"},
        "accuracy": {"train_accuracy": "train_", "val_accuracy": "val_"},
        "miou": {"val_miou": "val_"},
    }
    assert {label: [one.name for one in same] for label, same in by_recipe(runs).items()} == {
        "a (2 seeds)": ["a-s0", "a-s1"], "b": ["b"],
    }  # fmt: skip
    assert runs[0].line("val_loss") == [(1, 2.5), (2, 2.0)]
    assert draw_curves(runs) == draw_curves(runs)


@pytest.mark.parametrize("content", [None, "epoch,loss\n", "a,b\n1,2\n", "epoch,loss\n0,x\n"])
def test_files_without_curves_are_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "run.csv").write_text(content)
    with pytest.raises(BadInputError, match=r"run\.csv"):
        read_curves(tmp_path / "run")
