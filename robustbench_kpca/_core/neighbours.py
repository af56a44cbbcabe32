"""Run a file with the modules of its folder, apart from modules of the same names elsewhere.

The modules get names of their own, and an `import` in them looks in the folder first, as in a script that Python runs
there, also if a function imports later. So `helpers.py` of one folder is never taken for that of another. Every file
that is loaded has its own copies; what is imported by a computed name is found only within `searched`.
"""

import builtins
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

_OURS = __name__.partition(".")[0]
_NUMBERS = count(1)


class _Folder:
    """The folder of a file, as a package of a name that nothing else has."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, f"{_OURS}_folder_{next(_NUMBERS)}"
        self.builtins = vars(builtins) | {"__import__": self._import}
        package = sys.modules[self.name] = ModuleType(self.name)
        package.__path__ = [str(path)]

    def _import(
        self,
        name: str,
        scope: Mapping[str, Any] | None = None,
        local: Mapping[str, Any] | None = None,
        wanted: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Do what an `import` in one of the modules says; arguments as of `builtins.__import__`."""
        if level or not self._has(name.partition(".")[0]):
            return builtins.__import__(name, scope, local, wanted or (), level)
        module = importlib.import_module(f"{self.name}.{name}")
        if wanted:
            return builtins.__import__(module.__name__, scope, local, wanted)
        return sys.modules[f"{self.name}.{name.partition('.')[0]}"]

    def _has(self, name: str) -> bool:
        """Whether a module is taken from the folder; a folder without code only if no other place has code so named."""
        if name in sys.stdlib_module_names or name == _OURS:
            return False
        spec = PathFinder.find_spec(name, [str(self.path)])
        if spec is None or spec.loader is not None:
            return spec is not None
        elsewhere = PathFinder.find_spec(name, [place for place in sys.path if place != str(self.path)])
        return elsewhere is None or elsewhere.loader is None


class _Loader(SourceFileLoader):
    """Runs a file as it is now; Python's own cache of compiled files overlooks changes within a second."""

    def get_code(self, fullname: str) -> Any:  # noqa: ARG002
        return self.source_to_code(self.get_data(self.path), self.path)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = _folders[_top(module.__name__)].builtins  # `import` calls its `__import__`
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds modules of a `_Folder` by their full names, such as `robustbench_kpca_folder_1.helpers`."""

    def find_spec(
        self,
        fullname: str,
        path: Any,
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if is_local(fullname) and path is not None else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


_FINDER = _Finder()
_folders: dict[str, _Folder] = {}


def load_file(file: Path) -> ModuleType:
    """Run a file with the modules of its folder, also if it was run before."""
    folder = _Folder(file.parent)
    _folders[folder.name] = folder
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    name = f"{folder.name}.{file.stem.replace('.', '_')}"
    spec = spec_from_file_location(name, file, loader=_Loader(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def is_local(module: str) -> bool:
    """Whether a module of this name was loaded by `load_file`; no other process knows that name."""
    return _top(module) in _folders


@contextmanager
def searched(folder: Path, *, leave: bool = True) -> Iterator[None]:
    """Search a folder for modules, after all others; without `leave`, those found there are forgotten at the end.

    Code that imports by a computed name needs this.
    """
    before, added = set(sys.modules), str(folder)
    sys.path.append(added)
    try:
        yield
    finally:
        sys.path.remove(added)
        for name in [] if leave else set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and folder in Path(file).parents and not is_local(name):
                del sys.modules[name]


def _top(module: str) -> str:
    return module.partition(".")[0]
