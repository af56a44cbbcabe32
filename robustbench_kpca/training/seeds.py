"""Several runs of one recipe, one for each seed: their names, and what is trained under each."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import name_with_seed
from robustbench_kpca._core.strict import parse_ranges
from robustbench_kpca.training.recipe import Recipe, load_recipe


class Wanted(NamedTuple):
    """One training: the name of its files, its recipe, and the text that says what was trained."""

    name: str
    recipe: Recipe
    text: str


def runs_of(recipe: str, overrides: Mapping[str, Any], seeds: str = "", name: str = "") -> list[Wanted]:
    """Return the runs of a recipe: one named as the recipe, or with `seeds` one `NAME-sSEED` for each seed.

    A run with a seed is the same as one with the override `seed`, under another name.

    Args:
        recipe: name of a bundled recipe, or a TOML file.
        seeds: such as `0,1,2` or `0-4`; empty for the recipe's own seed.

    Raises:
        BadInputError: seeds that are no whole numbers, that repeat, or that are also among the overrides.
    """
    if seeds and "seed" in overrides:
        raise BadInputError(f"--seeds {seeds} and --set seed={overrides['seed']}", fix="remove one of them")
    runs = []
    for seed in parse_seeds(seeds) if seeds else [None]:
        stem, parsed, text = load_recipe(recipe, {**overrides} if seed is None else {**overrides, "seed": seed})
        title = name or stem
        runs.append(Wanted(title if seed is None else name_with_seed(title, seed), parsed, text))
    return runs


def parse_seeds(text: str) -> list[int]:
    """Parse seeds: whole numbers and ranges `FIRST-LAST`, separated by commas.

    Raises:
        BadInputError: something else, a range that runs backwards, or a seed that occurs twice.
    """
    seeds = parse_ranges(text, f"--seeds {text}")
    if len(set(seeds)) < len(seeds):
        raise BadInputError(f"--seeds {text}", expected="each seed once")
    return seeds
