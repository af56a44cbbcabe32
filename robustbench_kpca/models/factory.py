"""Models made by a function of the user: `module:factory`, or `file.py:factory`. The function's code is run."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from robustbench_kpca._core.code_digest import is_installed, of_file
from robustbench_kpca._core.errors import BadInputError, BenchmarkError, reason_of
from robustbench_kpca.models.local_modules import load_file, searched

_CODE = "factory_code"


def build(name: str, options: dict[str, Any]) -> nn.Module:
    """Call the factory `name` with `options`; modules are searched in the folder of its file, or in the current one.

    Raises:
        BadInputError: it cannot be imported, fails, or returns no module.

    """
    place, _, attribute = name.rpartition(":")
    file = Path(place).resolve() if place.endswith(".py") else None
    if file is not None and not file.is_file():
        raise BadInputError(f"there is no file {place}", fix="check the path")
    with searched(Path.cwd()) if file is None else searched(file.parent, leave=False):
        module, factory = _find(name, place, file, attribute)
        code = _code(module)
        try:
            model = factory(**options)
        except (BenchmarkError, KeyboardInterrupt):
            raise
        except BaseException as error:  # foreign code
            raise BadInputError(f"model factory '{name}' failed ({reason_of(error)})") from error
    if not isinstance(model, nn.Module):
        raise BadInputError(f"model factory '{name}' returned {type(model).__name__}", expected="a torch.nn.Module")
    vars(model)[_CODE] = code
    return model


def code_of_factory(model: nn.Module) -> str:
    """Return the digest of the code of the factory that made a model; "" where there is none, or it is installed."""
    return str(vars(model).get(_CODE, ""))


def _find(name: str, place: str, file: Path | None, attribute: str) -> tuple[ModuleType, Any]:
    try:
        module = importlib.import_module(place) if file is None else load_file(file)
    except (BenchmarkError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 (foreign code)
        raise BadInputError(
            f"model factory '{name}' cannot be imported ({reason_of(error)})",
            fix="check PYTHONPATH, or name the file: FILE.py:FACTORY" if file is None else "check the path",
        ) from None
    if not hasattr(module, attribute):
        raise BadInputError(f"model factory '{name}': {place} defines no {attribute}", fix="check the name")
    return module, getattr(module, attribute)


def _code(module: ModuleType) -> str:
    """Return the digest of the code of a module as it was loaded; "" if a package has it, whose version is recorded."""
    file = getattr(module, "__file__", None)
    return "" if file is None or is_installed(Path(file).resolve()) else of_file(Path(file))
