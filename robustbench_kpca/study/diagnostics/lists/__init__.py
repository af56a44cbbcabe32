"""Lists of models for `rbk diagnose --models NAME`, one TOML file each."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import safe_name
from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca._core.strict import STRICT, load_toml, validate

FOLDER = Path(__file__).parent
TEXT = "transformers:"


class Listed(BaseModel):
    """One model: its name on pages, its name for `rbk diagnose`, and a text encoder's configuration."""

    model_config = STRICT
    name: str
    model: str
    config: dict[str, Any] = {}

    @property
    def reads_texts(self) -> bool:
        """Whether it is a text encoder."""
        return self.model.startswith(TEXT)

    def with_depth(self, depth: int | None) -> dict[str, Any]:
        """Return the model option that sets the number of layers."""
        return {} if depth is None else {"num_hidden_layers" if self.reads_texts else "depth": depth}


class ModelList(BaseModel):
    """Models to compare on one page."""

    model_config = STRICT
    title: str
    source: str
    model: tuple[Listed, ...]


def load_list(name: str) -> ModelList:
    """Read a list by name, or a TOML file of the user.

    Raises:
        BadInputError: there is no such list, a key is wrong, a name occurs twice, or one cannot be that of a folder.
    """
    known = [path.stem for path in sorted(FOLDER.glob("*.toml"))]
    path = FOLDER / f"{name}.toml" if name in known else Path(name)
    if path.suffix != ".toml":
        raise unknown_name("list of models", name, known, "give a TOML file")
    models = validate(ModelList, load_toml(path), str(path))
    names = [model.name for model in models.model]
    twice = next((other for other in names if names.count(other) > 1), None)
    if twice is not None:
        raise BadInputError(f"{path} lists '{twice}' twice", expected="different names")
    strange = next((other for other in names if safe_name(other) != other), None)
    if strange is not None:
        raise BadInputError(
            f"{path} lists the name '{strange}'", expected="letters, digits and ._-@, since it names a folder of --out"
        )
    return models


def configuration(model: str) -> dict[str, Any]:
    """Return the configuration of a text encoder of one of the lists.

    Raises:
        BadInputError: no list has this encoder.
    """
    lists = [load_list(path.stem) for path in sorted(FOLDER.glob("*.toml"))]
    known = {entry.model: entry.config for models in lists for entry in models.model if entry.config}
    if model not in known:
        raise unknown_name("configuration of an untrained encoder", model, known, "give a folder with a config.json")
    return known[model]
