"""Models made by a function of the user: `module:factory`, or `file.py:factory`. The function's code is run."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from robustbench_kpca.errors import BadInputError, BenchmarkError


def build(name: str, options: dict[str, Any]) -> nn.Module:
    """Call the factory `name` with `options`; modules are searched in the current folder, too.

    Raises:
        BadInputError: it cannot be imported, fails, or returns no module.

    """
    place, _, attribute = name.rpartition(":")
    try:
        with _importing(Path(place).resolve().parent if _is_file(place) else Path.cwd()):
            factory = getattr(_module(place), attribute)
    except BenchmarkError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 (foreign code)
        raise BadInputError(
            f"model factory '{name}' cannot be imported ({type(error).__name__}: {error})",
            fix="check the path" if _is_file(place) else "check PYTHONPATH, or name the file: FILE.py:FACTORY",
        ) from None
    try:
        model = factory(**options)
    except BenchmarkError:
        raise
    except (Exception, SystemExit) as error:  # foreign code
        raise BadInputError(f"model factory '{name}' failed ({type(error).__name__}: {error})") from error
    if not isinstance(model, nn.Module):
        raise BadInputError(f"model factory '{name}' returned {type(model).__name__}", expected="a torch.nn.Module")
    return model


def _is_file(place: str) -> bool:
    return place.endswith(".py")


def _module(place: str) -> ModuleType:
    if not _is_file(place):
        return importlib.import_module(place)
    path = Path(place).resolve()
    if not path.is_file():
        raise BadInputError(f"there is no file {place}", fix="check the path")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """Search a folder for modules, after all others."""
    added = str(folder)
    sys.path.append(added)
    try:
        yield
    finally:
        sys.path.remove(added)
