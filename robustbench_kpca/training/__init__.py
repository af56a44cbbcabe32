"""Training of models from recipes, on clean or adversarial images."""

from pathlib import Path

from robustbench_kpca._core.registry import unknown_name

RECIPES = Path(__file__).parent / "recipes"


def recipes() -> dict[str, Path]:
    """Return name -> path of every recipe that comes with the package."""
    return {path.stem: path for path in sorted(RECIPES.glob("**/*.toml"))}


def recipe_path(name: str) -> Path:
    """Return the path of a recipe, given its name or a TOML file; no torch.

    Raises:
        UnknownNameError: no such recipe.
    """
    known = recipes()
    if not name.endswith(".toml") and name not in known:
        raise unknown_name("recipe", name, known, "give a .toml file")
    return known.get(name, Path(name))
