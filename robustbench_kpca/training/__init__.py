"""Models of the project's own, trained from committed recipes; clean or adversarially."""

from pathlib import Path

RECIPES = Path(__file__).parent / "recipes"


def recipes() -> dict[str, Path]:
    """Name -> path of every recipe that comes with the package."""
    return {path.stem: path for path in sorted(RECIPES.glob("**/*.toml"))}
