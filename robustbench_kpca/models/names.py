"""The names of models: which exist, which data set each belongs to, what an unknown one may mean; without torch."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from robustbench_kpca._core.errors import UnknownNameError
from robustbench_kpca._core.files import require_file
from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca.models.bundle import bundled, read_header
from robustbench_kpca.models.families import ARCHITECTURES, data_of
from robustbench_kpca.models.sources import SOURCES, base_name, source_of

_LIBRARIES = {"timm": "timm model", "torchvision": "torchvision classifier"}
"""Sources whose models are functions of a library, with what one of them is called."""
_WEIGHTS = (".pt", ".pth", ".safetensors", ".ckpt", ".bin")
"""Ends of the names of files that hold weights, and no architecture."""
_REGISTERED = re.compile(r"^@register_model\b.*\n(?:@.*\n|\)\n| +.*\n)*def (\w+)\(", re.MULTILINE)
"""A function that a library registers as a model; the group is its name."""


def require_model(name: str) -> None:
    """Raise an error for a name that no model has.

    No library is imported, no code of the user is run, and the hub is not queried: a name of the hub always passes.

    Raises:
        UnknownNameError: it is no model of this package, of timm or of torchvision, or its module does not exist.
        BadInputError: there is no such file.
    """
    name = base_name(name)
    source, name_there = source_of(name)
    if source in _LIBRARIES:
        registered = _library_names(source)
        if registered and name_there.partition(".")[0] not in registered:
            raise unknown_name(_LIBRARIES[source], name_there, registered)
    elif not source and ":" in name:
        _require_factory_file(name)
    elif not source and name not in ARCHITECTURES and name not in bundled():
        raise _unknown(name)


def home_data(name: str) -> str | None:
    """Return the data set of a model's own family, such as `digits` for `vit_digits_adv`; None if there is none.

    Raises:
        UnknownNameError: a name without a source that is no model of the package.
    """
    name = base_name(name)
    if ":" in name or source_of(name)[0]:
        return None
    require_model(name)
    return data_of(str(config_of(name)["name"]))


def config_of(name: str) -> dict[str, Any]:
    """Return what `create_model` needs for an architecture, or for a bundled model's architecture."""
    if name not in bundled():
        return {"name": name}
    config: dict[str, Any] = json.loads(read_header(bundled()[name])["config"])
    return config


def _require_factory_file(name: str) -> None:
    """Refuse `FILE.py:FACTORY` without the file, and `MODULE:FACTORY` without the module."""
    location = name.rpartition(":")[0]
    if location.endswith(".py"):
        require_file(Path(location), "model file")
        return
    package = location.partition(".")[0]
    in_this_folder = any(path.exists() for path in (Path(package), Path(f"{package}.py")))
    if not in_this_folder and (not package.isidentifier() or importlib.util.find_spec(package) is None):
        raise unknown_name("source or module of models", location, SOURCES.names(), "name a file: FILE.py:FACTORY")


def _unknown(name: str) -> UnknownNameError:
    """Return the error for a name that is no model of this package; it suggests sources that may have it."""
    suggestions = [f"{library}:{name}" for library in _LIBRARIES if name.partition(".")[0] in _library_names(library)]
    suggestions += [f"hf:{name}"] if name.count("/") == 1 or (name and (Path(name) / "config.json").is_file()) else []
    suggestions += [f"{name}:FACTORY"] if name.endswith(".py") else []
    suggestions += [f"--checkpoint {name} beside --model ARCHITECTURE"] if name.endswith(_WEIGHTS) else []
    if not suggestions:
        return unknown_name("model", name, [*ARCHITECTURES, *bundled()])
    return UnknownNameError(f"there is no model named '{name}'", fix=f"did you mean {' or '.join(suggestions)}?")


def _library_names(library: str) -> list[str]:
    """Return the names of the models that a library registers, read from its files, since importing takes seconds."""
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        return []
    files = sorted((Path(spec.origin).parent / "models").glob("*.py"))
    return [name for file in files for name in _REGISTERED.findall(file.read_text("utf-8"))]
