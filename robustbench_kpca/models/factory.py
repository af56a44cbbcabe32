"""Models made by a function of the user: `module:factory`, or `file.py:factory`. The function's code is run."""

from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from robustbench_kpca._core import address
from robustbench_kpca._core.errors import BadInputError, BenchmarkError, reason_of
from robustbench_kpca._core.outside import is_installed, of_file

_CODE = "factory_code"


def build(name: str, options: dict[str, Any]) -> nn.Module:
    """Call the factory `name` with `options`; modules are searched in the folder of its file, or in the current one.

    Raises:
        BadInputError: it cannot be imported, fails, or returns no module.
    """
    address.require(name, "model factory")
    with address.searching(name):
        factory = address.load_again(name, "model factory")
        code = _code(factory.module)
        try:
            model = factory.member(**options)
        except (BenchmarkError, KeyboardInterrupt):
            raise
        except BaseException as error:  # foreign code
            raise BadInputError(f"model factory '{name}' failed ({reason_of(error)})") from error
    if not isinstance(model, nn.Module):
        raise BadInputError(f"model factory '{name}' returned {type(model).__name__}", expected="a torch.nn.Module")
    vars(model)[_CODE] = code
    return model


def code_of_factory(model: nn.Module) -> str:
    """Return the SHA-256 of the code of the factory that made a model; "" where there is none, or it is installed."""
    return next((str(vars(part)[_CODE]) for part in model.modules() if _CODE in vars(part)), "")


def _code(module: ModuleType) -> str:
    """Return the SHA-256 of a module as it was loaded; "" if a package has it, whose version is recorded."""
    file = getattr(module, "__file__", None)
    return "" if file is None or is_installed(Path(file).resolve()) else of_file(Path(file))
