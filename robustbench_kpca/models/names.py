"""The names of models: which there are, of which data each is, and what an unknown one may mean; no torch."""

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
_REGISTERED = re.compile(r"^@register_model\b.*\n(?:@.*\n|\)\n| +.*\n)*def (\w+)\(", re.MULTILINE)


def require_model(name: str) -> None:
    """Refuse the name of no model, before a library is imported; code of the user is not run, and the hub not asked.

    Raises:
        UnknownNameError: it is no model of this package, of timm or of torchvision, or its module is not to be found.
        BadInputError: there is no such file.
    """
    name = base_name(name)
    source, rest = source_of(name)
    if source in _LIBRARIES:
        known = _library_names(source)
        if known and rest.partition(".")[0] not in known:
            raise unknown_name(_LIBRARIES[source], rest, known)
    elif not source and ":" in name:
        _require_place(name)
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


def _require_place(name: str) -> None:
    """Refuse `FILE.py:FACTORY` without the file, and `MODULE:FACTORY` without the module."""
    place = name.rpartition(":")[0]
    if place.endswith(".py"):
        require_file(Path(place), "model file")
        return
    top = place.partition(".")[0]
    here = any(path.exists() for path in (Path(top), Path(f"{top}.py")))
    if not here and (not top.isidentifier() or importlib.util.find_spec(top) is None):
        raise unknown_name("source or module of models", place, SOURCES.names(), "name a file: FILE.py:FACTORY")


def _unknown(name: str) -> UnknownNameError:
    """Return the error for a name that is no model of this package: other sources that have it are named."""
    suggestions = [f"{library}:{name}" for library in _LIBRARIES if name.partition(".")[0] in _library_names(library)]
    suggestions += [f"hf:{name}"] if name.count("/") == 1 or (name and (Path(name) / "config.json").is_file()) else []
    suggestions += [f"{name}:FACTORY"] if name.endswith(".py") else []
    if not suggestions:
        return unknown_name("model", name, [*ARCHITECTURES, *bundled()])
    return UnknownNameError(f"there is no model named '{name}'", fix=f"did you mean {' or '.join(suggestions)}?")


def _library_names(library: str) -> list[str]:
    """Return the models that a library registers, read from its files: to import it takes seconds."""
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        return []
    files = sorted((Path(spec.origin).parent / "models").glob("*.py"))
    return [name for file in files for name in _REGISTERED.findall(file.read_text("utf-8"))]
