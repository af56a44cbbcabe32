"""Addresses: objects in code from outside, `FILE.py:OBJECT` or `package.module:OBJECT`. To load one runs that code.

A file is run once, and again after `require` has met other code in it or beside it. Files are those of the current
folder, also in other processes.
"""

import importlib
import importlib.util
import io
import pickle
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from robustbench_kpca._core.early_exit import no_early_exit
from robustbench_kpca._core.errors import BadInputError, BenchmarkError, UnknownNameError, reason_of
from robustbench_kpca._core.neighbours import is_local, load_file, searched
from robustbench_kpca._core.outside import of_file, of_object

FORM = "FILE.py:OBJECT"


class Loaded(NamedTuple):
    """An object, the module that names it, and the SHA-256 of its code as it was loaded; "" if it cannot be read."""

    module: ModuleType
    member: Any
    code: str


_modules: dict[str, tuple[ModuleType, str]] = {}  # with the SHA-256 of the file as it was run


def is_address(name: str) -> bool:
    """Tell an address from a name of the package."""
    place, colon, _ = name.rpartition(":")
    return bool(colon) and (place.endswith(".py") or all(part.isidentifier() for part in place.split(".")))


def require(address: str, kind: str) -> None:
    """Refuse an address whose file or module is not there; its code is not run.

    Raises:
        UnknownNameError: there is no such file or module.
    """
    place, file, _ = _parts(address)
    if file is not None:
        exists = file.is_file()
    else:
        top = place.partition(".")[0]
        exists = any(path.exists() for path in (Path(top), Path(f"{top}.py"))) or _is_known(top)
    if not exists:
        what = f"file {place}" if file is not None else f"module {place}"
        fix = "check the path" if file is not None else f"check PYTHONPATH, or name the file: {FORM}"
        raise UnknownNameError(f"{kind} '{address}': there is no {what}", fix=fix)
    if file is not None and str(file) in _modules and _modules[str(file)][1] != of_file(file, now=True):
        del _modules[str(file)]


def load(address: str, kind: str) -> Loaded:
    """Return the object at an address; its file is run if that was not done before. `kind` is for errors.

    Raises:
        BadInputError: it cannot be imported, or defines no such object.
    """
    place, file, name = _parts(address)
    key = place if file is None else str(file)
    if key not in _modules:
        require(address, kind)
        _modules[key] = _imported(address, kind)
    return _object_of(*_modules[key], name, address, kind)


def load_again(address: str, kind: str) -> Loaded:
    """Return the object at an address as `load` does, but run its file in any case."""
    return _object_of(*_imported(address, kind), _parts(address)[2], address, kind)


@no_early_exit()
def _imported(address: str, kind: str) -> tuple[ModuleType, str]:
    """Run the file of an address, or import its module; return it with the SHA-256 of its code."""
    place, file, _ = _parts(address)
    with searching(address):
        try:
            module = importlib.import_module(place) if file is None else load_file(file)
        except (BenchmarkError, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 (foreign code)
            raise BadInputError(
                f"{kind} '{address}' cannot be imported ({reason_of(error)})",
                fix=f"check PYTHONPATH, or name the file: {FORM}" if file is None else "correct that file",
            ) from None
        source = getattr(module, "__file__", None)
        return module, "" if source is None else of_file(Path(source))


def _object_of(module: ModuleType, code: str, name: str, address: str, kind: str) -> Loaded:
    if not hasattr(module, name):
        place = address.rpartition(":")[0]
        raise BadInputError(f"{kind} '{address}': {place} defines no {name or 'object'}", fix="check the name")
    member = getattr(module, name)
    return Loaded(module, member, "+".join(sorted({code, of_object(member)} - {""})))


def searching(address: str) -> AbstractContextManager[None]:
    """Search for modules where the code of an address does: in the folder of its file, or in the current one."""
    _, file, _ = _parts(address)
    return searched(Path.cwd()) if file is None else searched(file.parent, leave=False)


def dumps(value: Any) -> bytes:
    """Pickle a value for another process of this user; what a local file defines by a name goes as its address."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def is_importable(value: Any, *, runs_script: bool) -> bool:
    """Whether another process can unpickle what `dumps` writes; `runs_script`: it runs the script of this one first."""
    try:
        dumps(value)
    except Exception:  # noqa: BLE001 (pickling foreign objects can raise anything)
        return False
    in_script = _definition(value).__module__ == "__main__"
    return not in_script or (runs_script and hasattr(sys.modules["__main__"], "__file__"))


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        kind = _definition(value)
        module = sys.modules.get(kind.__module__ or "")
        if module is None or getattr(module, kind.__qualname__, None) is not value:
            return NotImplemented
        if is_local(kind.__module__):
            return _of_file, (str(module.__file__), kind.__qualname__)
        return NotImplemented if value is kind else (_of_module, (kind.__module__, kind.__qualname__))


def _definition(value: Any) -> Any:
    """Return the function or class that an object is, or is made of by a decorator, else its class."""
    value = getattr(value, "__wrapped__", value) if not isinstance(value, type) else value
    return value if isinstance(value, (type, FunctionType)) else type(value)


def _of_module(module: str, name: str) -> Any:
    """Return what a module defines: how `dumps` names what a decorator made."""
    return getattr(importlib.import_module(module), name)


def _of_file(file: str, name: str) -> Any:
    """Return what a file of this machine defines: how `dumps` names it."""
    return load(f"{file}:{name}", "the object").member


def _parts(address: str) -> tuple[str, Path | None, str]:
    place, _, name = address.rpartition(":")
    return place, Path(place).resolve() if place.endswith(".py") else None, name


def _is_known(top: str) -> bool:
    try:
        return importlib.util.find_spec(top) is not None
    except ValueError:  # a module without a specification, such as __main__
        return top in sys.modules
