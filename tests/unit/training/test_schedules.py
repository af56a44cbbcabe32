"""Recipes of the package: each arm of each schedule is a whole recipe, whose text is what trained weights keep."""

import tomllib
from pathlib import Path

import pytest
import torch

from robustbench_kpca import create_model
from robustbench_kpca.models.bundle import bundled, read_header
from robustbench_kpca.models.families import ARCHITECTURES, task_of
from robustbench_kpca.training import schedules
from robustbench_kpca.training.recipe import load_recipe
from robustbench_kpca.training.schedules import recipes

ROOT = Path(__file__).parents[3]


def distinct_models(key):
    """One recipe for each model that `key` tells apart."""
    return list({key(recipe): name for name, recipe in recipes().items()}.values())


def family(recipe):
    return ARCHITECTURES[recipe["model"]][0]


def whole_model(recipe):
    return f"{recipe['model']} {recipe['model_options']}"


def test_recipes_have_names_and_texts_of_their_own(tmp_path):
    arms = [tomllib.loads(path.read_text())["arms"] for path in Path(schedules.__file__).parent.glob("recipes/*.toml")]
    assert sum(map(len, arms)) == len(recipes()) >= 175
    # So a user may begin with it.
    for name in recipes():
        stem, recipe, text = load_recipe(name)
        (tmp_path / "mine.toml").write_text(text)
        assert stem == name
        assert load_recipe(str(tmp_path / "mine.toml"))[1] == recipe


def test_committed_weights_keep_the_text_of_their_recipe():
    """Byte by byte, so that `rbk train --resume` knows them."""
    committed = {path: path.stem.split("-")[0] for path in ROOT.glob("leaderboards/*/trainings/*/*.safetensors")}
    assert len(committed) > 300
    for path, name in committed.items():
        lines = read_header(path)["recipe"].splitlines(keepends=True)
        assert "".join(line for line in lines if not line.startswith("# --set ")) == load_recipe(name)[2], path
    for name, path in bundled().items():
        assert tomllib.loads(read_header(path)["recipe"]) == tomllib.loads(load_recipe(name)[2])


@pytest.mark.parametrize("key", [family, pytest.param(whole_model, marks=pytest.mark.slow)])
def test_every_recipe_builds_its_model_and_weighs_its_losses(fork, key):
    for name in distinct_models(key):
        recipe = load_recipe(name)[1]
        small = {"depth": 2} | ({"vocab_size": 50} if task_of(recipe.model) == "language" else {})
        model = create_model(recipe.model, **recipe.model_options | small)
        adding = [module for module in model.train().modules() if hasattr(module, "penalties")]
        if adding:
            seen = model.config
            words = seen.get("vocabulary", seen.get("vocab_size"))
            length = seen.get("length", seen.get("window"))
            length = length and length * seen.get("texts", 1)
            shape = (3, seen["img_size"], seen["img_size"]) if length is None else (seen.get("channels", 1), 1, length)
            model(torch.randint(0, words, (2, *shape)).float() if words else torch.rand(2, *shape))
        assert {key for module in adding for key in module.penalties} == set(recipe.penalties), name
