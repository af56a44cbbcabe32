"""The SHA-256 of code from outside the package: of its file, and of the files beside it that it imports.

Files beside a file are those of its folder, or of its package. For a script the digest is that of the whole file; for
what a notebook defines, that of the cell. Modules that code imports by a computed name, other cells, and files that
code reads are left out. Code counts as it was loaded: a file that is edited later, only when it is imported again.
"""

import ast
import hashlib
import linecache
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache, lru_cache, partial
from importlib import metadata
from operator import is_
from pathlib import Path
from types import FunctionType
from typing import Any

PACKAGE = Path(__file__).parents[1]
INSTALLED = frozenset(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
"""Folders of Python and of installed packages."""
_loaded: dict[Path, tuple[Any, bytes]] = {}  # with what `_load_of` says of it
_modules: tuple[list[Any], dict[str, Any]] = [], {}  # those that were imported at the last look, and by file


def of_file(file: Path, *, now: bool = False) -> str:
    """Return the SHA-256 of a file outside this package with what it imports from its folder or its package.

    It is that of the lines that `sha256sum` prints of these files, sorted by path; of a file that imports nothing
    beside it, that of the file itself; of a file of an installed package, that of the hashes which its installer wrote.

    Args:
        file: the file.
        now: what the files say now, rather than what they said when they were loaded.
    """
    file = file.resolve()
    root = next(folder for folder in file.parents if not (folder / "__init__.py").is_file())
    if root in INSTALLED:
        written = _written_by_installer(file.relative_to(root).parts[0].removesuffix(".py"))
        return _sha256(written.encode() or file.read_bytes())
    digests = dict[Path, str]()
    todo = {file, *(folder / "__init__.py" for folder in file.parents if root in folder.parents)}
    while todo:
        path = todo.pop()
        content = _content(path, None if now else _load_of(path))
        digests[path] = _sha256(content)
        imported = _imported(content, path, root) | _imported(content, path, file.parent)
        todo |= {path for path in imported - digests.keys() if root in path.parents}
    lines = [f"{digest}  {path.relative_to(root).as_posix()}\n" for path, digest in sorted(digests.items())]
    return digests[file] if len(digests) == 1 else _sha256("".join(lines).encode())


def of_object(member: Any) -> str:
    """Return the SHA-256 of the code of an object: of the files of its class, and of those that this derives from.

    For a function, return that of its file; "" where code cannot be read.
    """
    first, *bases = _kinds(member)
    codes = {_of_kind(kind) for kind in (first, *filter(is_foreign, bases))}
    return "+".join(sorted(codes)) if all(codes) else ""


def is_foreign(kind: Any) -> bool:
    """Whether a class or function is neither of Python nor of an installed package, this one included."""
    file = _file(kind)
    return kind.__module__ == "__main__" or (file is not None and not is_installed(file))


def is_installed(file: Path) -> bool:
    """Whether a file is of Python, of this package or of an installed one; a record names the versions of these."""
    return not INSTALLED.union([PACKAGE]).isdisjoint(file.parents)


def _kinds(member: Any) -> list[Any]:
    """Return the function, or the class and all that it derives from."""
    while isinstance(member, partial) or (hasattr(member, "__wrapped__") and not isinstance(member, type)):
        member = member.func if isinstance(member, partial) else member.__wrapped__
    if isinstance(member, FunctionType):
        return [member]
    return list((member if isinstance(member, type) else type(member)).__mro__)


def _of_kind(kind: Any) -> str:
    file = _file(kind)
    if file is None:
        return _of_cell(kind)
    return PACKAGE.name if PACKAGE in file.parents else of_file(file)


def _file(kind: Any) -> Path | None:
    """Return the file of the module that defines a class or function; None for what is built in, or of a notebook."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return None if file is None else Path(file).resolve()


def _of_cell(kind: Any) -> str:
    """Return the SHA-256 of the cells of a notebook in which a function or the methods of a class are written."""
    members = [kind] if isinstance(kind, FunctionType) else vars(kind).values()
    functions = [getattr(member, "fget", None) or getattr(member, "__func__", member) for member in members]
    codes = [getattr(getattr(function, "__wrapped__", function), "__code__", None) for function in functions]
    cells = {"".join(linecache.getlines(code.co_filename)) for code in codes if code is not None} - {""}
    return _sha256("".join(sorted(cells)).encode()) if cells else ""


@cache
def _written_by_installer(package: str) -> str:
    """Return the hashes of the code of an installed package, as its installer wrote them down; "" without these.

    To read all of a large package, such as torch, takes minutes.
    """
    return "\n".join(
        f"{path.as_posix()} {path.hash.value}"
        for distribution in sorted(metadata.packages_distributions().get(package, ()))
        for path in metadata.files(distribution) or ()
        if path.suffix == ".py" and path.hash and path.parts[0].removesuffix(".py") == package
    )


def _load_of(file: Path) -> Any:
    """Return what stands for the latest load of a file: the specification of its module; of a script, itself."""
    modules, by_file = _modules
    now = list(sys.modules.values())
    if len(now) != len(modules) or not all(map(is_, now, modules)):  # to ask each of thousands takes milliseconds
        script = sys.modules["__main__"]
        path = getattr(script, "__file__", None)
        by_file.clear()
        by_file.update({} if path is None else {str(Path(path).resolve()): script})
        by_file.update({str(getattr(_spec(module), "origin", None)): module for module in now})
        modules[:] = now
    module = by_file.get(str(file))
    return _spec(module) or module


def _spec(module: Any) -> Any:
    return getattr(module, "__dict__", {}).get("__spec__")


def _content(file: Path, load: Any) -> bytes:
    """Return what a file says, or said when it was loaded, if it has been asked for since."""
    if load is None:
        return file.read_bytes()
    if _loaded.get(file, (None,))[0] is not load:
        _loaded[file] = load, file.read_bytes()
    return _loaded[file][1]


@lru_cache(maxsize=1000)
def _imported(content: bytes, file: Path, root: Path) -> frozenset[Path]:
    """Return the files below `root` that a file imports: modules, and the packages that these are in."""
    try:
        nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    files = set[Path]()
    for node in nodes:
        if isinstance(node, ast.Import):
            files.update(*(_files(root, alias.name) for alias in node.names))
        elif isinstance(node, ast.ImportFrom) and node.level < len(file.parents):
            place = file.parents[node.level - 1] if node.level else root
            base = f"{node.module}." if node.module else ""
            files.update(*(_files(place, f"{base}{alias.name}") for alias in node.names))
    return frozenset(files)


def _files(place: Path, name: str) -> Iterator[Path]:
    """Yield the files that importing a name runs, of those below a folder."""
    for part in name.split("."):
        place /= part
        for file in (place / "__init__.py", place.with_name(f"{part}.py")):
            if file.is_file() and not is_installed(file):
                yield file


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
