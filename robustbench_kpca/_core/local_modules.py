"""The modules of a folder, as a file in it imports them: apart from modules of the same names elsewhere.

They are loaded under names of their own, and imports in them look in the folder first, as in a script that Python runs
there. So `helpers.py` of one folder is never taken for that of another, also where a function imports it later.
"""

import builtins
import hashlib
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


class Folder:
    """A folder with the modules that were loaded from it; `contents`: what their files said, as digests."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, f"{_OURS}_folder_{next(_NUMBERS)}"
        self.contents: dict[Path, str] = {}
        self.builtins = vars(builtins) | {"__import__": self._import}
        package = sys.modules[self.name] = ModuleType(self.name)
        package.__path__ = [str(path)]

    def load(self, file: Path) -> ModuleType:
        """Run a file of the folder, also if it was run before."""
        name = f"{self.name}.{file.stem.replace('.', '_')}"
        spec = spec_from_file_location(name, file, loader=_Loader(name, str(file), self))
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    def is_current(self) -> bool:
        """Whether the files of its modules say what they said when they were loaded."""
        return all(file.is_file() and _digest(file.read_bytes()) == digest for file, digest in self.contents.items())

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
        if wanted:
            return builtins.__import__(f"{self.name}.{name}", scope, local, wanted)
        importlib.import_module(f"{self.name}.{name}")
        return sys.modules[f"{self.name}.{name.partition('.')[0]}"]

    def _has(self, name: str) -> bool:
        """Whether a module is taken from the folder; a folder without code is a package only if there is no other."""
        if name in sys.stdlib_module_names or name == _OURS:
            return False
        here = PathFinder.find_spec(name, [str(self.path)])
        if here is None or here.loader is not None:
            return here is not None
        elsewhere = PathFinder.find_spec(name, [place for place in sys.path if place != str(self.path)])
        return elsewhere is None or elsewhere.loader is None


class _Loader(SourceFileLoader):
    """Runs a file as it is now; Python's own cache of compiled files overlooks changes within a second."""

    def __init__(self, name: str, path: str, folder: Folder) -> None:
        super().__init__(name, path)
        self.folder = folder

    def get_code(self, fullname: str) -> Any:  # noqa: ARG002
        content = self.get_data(self.path)
        self.folder.contents[Path(self.path)] = _digest(content)
        return self.source_to_code(content, self.path)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = self.folder.builtins
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds the modules of folders by their names here."""

    def find_spec(
        self,
        fullname: str,
        path: Any,
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        folder = _folders.get(fullname.partition(".")[0])
        spec = None if folder is None or path is None else PathFinder.find_spec(fullname, path)
        if folder is not None and spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path, folder)
        return spec


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


_FINDER = _Finder()
_latest: dict[Path, Folder] = {}
_folders: dict[str, Folder] = {}


def load_file(file: Path) -> ModuleType:
    """Run a file with the modules of its folder; these are loaded once, and again when one of them has changed."""
    folder = _latest.get(file.parent)
    if folder is None or not folder.is_current():
        folder = _latest[file.parent] = Folder(file.parent)
        _folders[folder.name] = folder
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    return folder.load(file)


def is_current(module: ModuleType) -> bool:
    """Whether the files that a module was loaded with say what they said then; true of modules of no such folder."""
    folder = _folders.get(module.__name__.partition(".")[0])
    return folder is None or folder.is_current()


def is_local(module: str) -> bool:
    """Whether a module of this name was loaded by `load_file`; no other process knows that name."""
    return module.partition(".")[0] in _folders


@contextmanager
def searched(folder: Path, *, leave: bool = True) -> Iterator[None]:
    """Search a folder for modules, after all others; unless they are to be left, those found there are forgotten.

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
            if file and folder in Path(file).parents and not name.startswith(f"{_OURS}_folder_"):
                del sys.modules[name]
