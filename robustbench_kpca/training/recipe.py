"""A training run as data: strict TOML, every number stated."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from robustbench_kpca.registry import unknown_name
from robustbench_kpca.scenario import Scalar
from robustbench_kpca.strict import STRICT, load_toml, validate
from robustbench_kpca.threat import Norm, Threat, parse_fraction
from robustbench_kpca.training import recipes


class Adversarial(BaseModel):
    """Train on the attack's last iterate instead of the clean image (Madry et al., 2018, arXiv:1706.06083)."""

    model_config = STRICT
    norm: Norm
    eps: Annotated[float, BeforeValidator(parse_fraction)]
    warmup_epochs: Annotated[int, Field(ge=0)]
    """Epochs over which eps grows linearly from 0."""
    attack: str
    options: dict[str, Scalar]

    @model_validator(mode="after")
    def _check_threat(self) -> "Adversarial":
        Threat(self.norm, self.eps)
        return self

    def threat(self, epoch: int) -> Threat:
        """Give the ball in `epoch` (from 0)."""
        return Threat(self.norm, self.eps * min(1.0, (epoch + 1) / (self.warmup_epochs + 1)))


class Recipe(BaseModel):
    """Everything a training run depends on, but for the machine."""

    model_config = STRICT
    title: str
    model: str
    model_options: dict[str, Any]
    data: str
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    epochs: Annotated[int, Field(ge=1)]
    batch_size: Annotated[int, Field(ge=1)]
    optimizer: str
    lr: Annotated[float, Field(gt=0)]
    weight_decay: Annotated[float, Field(ge=0)]
    warmup_epochs: Annotated[int, Field(ge=0)]
    smoothing: Annotated[float, Field(ge=0, lt=1)]
    max_shift: Annotated[int, Field(ge=0)]
    """Augmentation: each image is moved by up to so many pixels either way, its border filled with black."""
    adversarial: Adversarial | None = None


def load_recipe(name: str) -> tuple[str, Recipe, str]:
    """Return the run's name, the parsed recipe and its text; `name` is a bundled recipe's or a TOML file's.

    Raises:
        UnknownNameError: no such recipe.
        BadInputError: a key or value of it cannot be used.

    """
    known = recipes()
    path = Path(name) if name.endswith(".toml") else known.get(name)
    if path is None:
        raise unknown_name("recipe", name, known, "(or give a .toml file)")
    data = load_toml(path)
    return path.stem, validate(Recipe, data, f"recipe {path.name}"), path.read_text("utf-8")
