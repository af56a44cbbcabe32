"""Several models as one, and several seeds in one pass: each is what it would be alone."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from stand_ins import few_digits
from torch import nn

from robustbench_kpca import create_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.training.ledger import Options
from robustbench_kpca.training.loop import train, train_together
from robustbench_kpca.training.recipe import load_recipe
from robustbench_kpca.training.run import Run
from robustbench_kpca.training.seeds import Wanted
from robustbench_kpca.training.together import Stacked

FEW, SEEDS = 40, (3, 4, 5)
SMALL = {"model_options.depth": 1, "batch_size": 16, "epochs": 2, "threads": 1}
"""Two epochs of two whole batches and one of half the size."""


def wanted(recipe="rpc_symvit_digits", seeds=SEEDS, **settings):
    loaded = [load_recipe(recipe, SMALL | settings | {"seed": seed}) for seed in seeds]
    return [Wanted(f"run-s{seed}", made, text) for seed, (_, made, text) in zip(seeds, loaded, strict=True)]


def distance(ours, theirs):
    flat = [torch.cat([value.double().flatten() for value in load_file(path).values()]) for path in (ours, theirs)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


STACKED = ["vit", "symvit", "rpc_symvit", *(f"{name}_vit" for name in ("neutreno", "robust_kde", "mom", "specformer"))]


@pytest.mark.usefixtures("fork")
@pytest.mark.parametrize(("name", "stem"), [*((f"{name}_digits", "patch") for name in STACKED), ("vit_digits", "conv")])
def test_the_logits_and_gradients_of_each_model_are_its_own(name, stem):
    models = []
    for seed in range(3):
        torch.manual_seed(seed)
        models.append(create_model(name, depth=2, stem=stem))
    images, stacked = torch.rand(3, 5, 3, 32, 32), Stacked(models)
    own = torch.stack([model(part) for model, part in zip(models, images, strict=True)])
    ours = stacked(images.flatten(0, 1)).view_as(own)
    torch.testing.assert_close(ours, own, rtol=1e-5, atol=1e-6)
    assert float((own[0] - own[1]).detach().abs().max()) > 1e-3  # they differ, so none can stand for another
    own.pow(3).sum().backward()
    ours.pow(3).sum().backward()
    for place, model in enumerate(models):
        for key, parameter in model.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(stacked.stacks[key].grad[place], parameter.grad, rtol=1e-3, atol=1e-6)


class Noisy(nn.Identity):
    stochastic = True


@pytest.mark.usefixtures("fork")
@pytest.mark.parametrize("layer", [nn.BatchNorm2d(3), nn.Dropout(0.5), Noisy()])
def test_models_whose_images_are_not_apart_are_refused(layer):
    with pytest.raises(BadInputError, match=f"several models at once with {type(layer).__name__}"):
        Stacked([nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 2)) for _ in range(2)])


def test_a_parameter_outside_a_layer_that_belongs_to_no_row_is_refused():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4, 4))

        def forward(self, x):
            return x.flatten(1) @ self.scale

    with pytest.raises(BadInputError, match="outside a layer"):
        Stacked([Scaled(), Scaled()])(torch.ones(4, 1, 2, 2))


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("rpc_symvit_digits", {"clip_grad": 0.05, "optimizer": "adamw", "max_shift": 1, "hflip": 0.5}),
        ("identity_symvit_digits_adv", {}),
    ],
)
def test_seeds_in_one_pass_are_those_trained_alone(tmp_path, recipe, settings):
    with few_digits(FEW):
        together = train_together(wanted(recipe, **settings), [tmp_path / "together"] * len(SEEDS), Options())
        alone = [train(*one, tmp_path / "alone") for one in wanted(recipe, **settings)]
    for ours, theirs in zip(together, alone, strict=True):
        assert distance(ours, theirs) < 1e-5
        curves = [path.with_suffix(".csv").read_text().splitlines() for path in (ours, theirs)]
        assert [len(rows) for rows in curves] == [3, 3]
        assert [row.split(",")[1] for row in curves[0]] == [row.split(",")[1] for row in curves[1]]  # learning rates
    assert distance(together[0], together[1]) > 1e-2
    with safe_open(together[0], "pt") as file:
        assert json.loads(file.metadata()["machines"])[0]["together"] == len(SEEDS)


def test_a_run_that_was_stopped_between_two_files_goes_on(tmp_path, monkeypatch):
    save = Run.save

    def stopped(run):
        if run.name == "run-s4" and run.done == 1:
            raise KeyboardInterrupt
        save(run)

    with few_digits(FEW):
        whole = train_together(wanted(), [tmp_path / "whole"] * len(SEEDS), Options())
        monkeypatch.setattr(Run, "save", stopped)
        with pytest.raises(KeyboardInterrupt):
            train_together(wanted(), [tmp_path / "parts"] * len(SEEDS), Options())
        monkeypatch.setattr(Run, "save", save)
        assert [(tmp_path / "parts" / f"run-s{seed}.resume.pt").is_file() for seed in SEEDS] == [True, False, False]
        rows = []
        options = Options(resume=True, on_epoch=lambda name, epoch: rows.append((name[-2:], epoch.epoch)))
        parts = train_together(wanted(), [tmp_path / "parts"] * len(SEEDS), options)
    assert rows == [("s4", 0), ("s5", 0), ("s3", 1), ("s4", 1), ("s5", 1)]  # who is behind comes first, alone
    assert all(distance(ours, theirs) < 1e-5 for ours, theirs in zip(parts, whole, strict=True))
    with few_digits(FEW):  # finished runs are left as they are
        assert train_together(wanted(), [tmp_path / "parts"] * len(SEEDS), Options(resume=True)) == parts


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({f"mixup.{key}": 0.5 for key in ("mixup", "cutmix", "prob", "switch_prob")}, "mixup"),
        ({"ema_decay": 0.9}, "ema_decay"),
        ({"optimizer": "lamb"}, "optimizer = 'lamb'"),
        ({"model_options.drop_path_rate": 0.5, "model_options.depth": 2}, "DropPath"),
    ],
)
def test_what_cannot_be_trained_so_is_refused_before_anything_is_lost(tmp_path, settings, named):
    runs = [one._replace(name="kept") for one in wanted(seeds=(3,))]
    with few_digits(FEW):
        path = train(*runs[0], tmp_path, Options(stop_at=0.0))
        assert not path.exists()
        state = path.with_name("kept.resume.pt").read_bytes()
        pair = wanted(seeds=(3, 4), **settings)
        pair[0] = pair[0]._replace(name="kept")
        with pytest.raises(BadInputError, match=named):
            train_together(pair, [tmp_path] * 2, Options(fresh=True))
    assert path.with_name("kept.resume.pt").read_bytes() == state


def test_the_command_trains_seeds_together(tmp_path, capsys):
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    words = ["train", "symvit_digits", "-o", str(tmp_path), "--seeds", "0,1", *sets]
    with few_digits(FEW):
        assert main([*words, "--together", "-q"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said] == [
        str(tmp_path / f"symvit_digits-s{n}.safetensors") for n in (0, 1)
    ]
    assert main([*words[:4], "--together"]) == 2
    assert "--together; expected several seeds" in capsys.readouterr().err
