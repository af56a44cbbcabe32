"""Addresses: objects in code from outside, `FILE.py:OBJECT` or `package.module:OBJECT`. To load one runs that code.

An object is loaded once, and again after `require` or `find` has met other code in its folder. Files are those of the
current folder, also in other processes.
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

from robustbench_kpca._core.code_digest import of_file, of_object
from robustbench_kpca._core.early_exit import no_early_exit
from robustbench_kpca._core.errors import BadInputError, BenchmarkError, UnknownNameError, reason_of
from robustbench_kpca._core.local_modules import is_current, is_local, load_file, searched

FORM = "FILE.py:OBJECT"


class Loaded(NamedTuple):
    """An object, the module that defines it, and the digest of its code as it was loaded; "" if it cannot be read."""

    module: ModuleType
    member: Any
    code: str


_loaded: dict[tuple[str, str], Loaded] = {}


def is_address(name: str) -> bool:
    """Tell an address from a name of the package."""
    place, colon, _ = name.rpartition(":")
    return bool(colon) and (place.endswith(".py") or all(part.isidentifier() for part in place.split(".")))


def require(address: str, kind: str) -> None:
    """Refuse an address whose file or module is not there; its code is not run.

    Raises:
        UnknownNameError: there is no such file or module.

    """
    place, file, name = _parts(address)
    if file is not None:
        found = file.is_file()
    else:
        top = place.partition(".")[0]
        found = any(path.exists() for path in (Path(top), Path(f"{top}.py"))) or _is_known(top)
    if not found:
        what = f"file {place}" if file is not None else f"module {place}"
        fix = "check the path" if file is not None else f"check PYTHONPATH, or name the file: {FORM}"
        raise UnknownNameError(f"{kind} '{address}': there is no {what}", fix=fix)
    kept = _loaded.get(_key(place, file, name))
    if kept is not None and not is_current(kept.module):
        del _loaded[_key(place, file, name)]


def load(address: str, kind: str) -> Loaded:
    """Return the object at an address, with its code as it was when it was first loaded; `kind` is for errors.

    Raises:
        BadInputError: it cannot be imported, or defines no such object.

    """
    place, file, name = _parts(address)
    key = _key(place, file, name)
    if key not in _loaded:
        require(address, kind)
        _loaded[key] = find(address, kind)
    return _loaded[key]


@no_early_exit()
def find(address: str, kind: str) -> Loaded:
    """Run the file of an address and return its object; modules are searched in its folder, or in the current one.

    Raises:
        BadInputError: as `load`.

    """
    place, file, name = _parts(address)
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
        if not hasattr(module, name):
            raise BadInputError(f"{kind} '{address}': {place} defines no {name or 'object'}", fix="check the name")
        member = getattr(module, name)
        return Loaded(module, member, _code(module, member))


def searching(address: str) -> AbstractContextManager[None]:
    """Search for modules where the code of an address does: in the folder of its file, or in the current one."""
    _, file, _ = _parts(address)
    return searched(Path.cwd()) if file is None else searched(file.parent, leave=False)


def dumps(value: Any) -> bytes:
    """Pickle a value for another process of this user; classes and functions of local files go as their addresses."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def is_importable(value: Any, *, runs_script: bool) -> bool:
    """Whether another process can unpickle what `dumps` writes; `runs_script`: it runs the script of this one first."""
    try:
        dumps(value)
    except Exception:  # noqa: BLE001 (pickling foreign objects can raise anything)
        return False
    kind = value if isinstance(value, (type, FunctionType)) else type(value)
    return kind.__module__ != "__main__" or (runs_script and hasattr(sys.modules["__main__"], "__file__"))


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, FunctionType)) and is_local(value.__module__ or ""):
            return _of_file, (str(sys.modules[value.__module__].__file__), value.__qualname__)
        return NotImplemented


def _of_file(file: str, name: str) -> Any:
    """Return what a file of this machine defines: how `dumps` names it."""
    return load(f"{file}:{name}", "the object").member


def _parts(address: str) -> tuple[str, Path | None, str]:
    place, _, name = address.rpartition(":")
    return place, Path(place).resolve() if place.endswith(".py") else None, name


def _key(place: str, file: Path | None, name: str) -> tuple[str, str]:
    return (place if file is None else str(file)), name


def _is_known(top: str) -> bool:
    try:
        return importlib.util.find_spec(top) is not None
    except ValueError:  # a module without a specification, such as __main__
        return top in sys.modules


def _code(module: ModuleType, member: Any) -> str:
    """Return the digest of the code of a module's file and, where that is elsewhere, of the object's own."""
    file = getattr(module, "__file__", None)
    return "+".join(sorted({"" if file is None else of_file(Path(file)), of_object(member)} - {""}))
