"""Training of models from recipes, on clean or adversarial images."""

from pathlib import Path

RECIPES = Path(__file__).parent / "recipes"


def recipes() -> dict[str, Path]:
    """Return name -> path of every recipe that comes with the package."""
    return {path.stem: path for path in sorted(RECIPES.glob("**/*.toml"))}
