"""The digest of a file of code, with the files that it imports from its folder, its package, or named rooms of ours."""

import ast
import importlib.util
import sys
import sysconfig
from collections.abc import Callable, Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from robustbench_kpca._core.code_digest.syntax import bare, digest_of, imported

PACKAGE = Path(__file__).parents[2]
INSTALLED = frozenset(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
"""Folders of Python and of installed packages."""
EQUAL: dict[str, dict[str, str]] = {
    "attacks/shared/ball.py": {"6774fedd44c0a113": "9b541f5e7d347090"},
    "attacks/shared/draws.py": {"fed9c40827eef0a6": "1a5bac1f37ee1e9f"},
    "attacks/shared/generators.py": {"a631decbd778b21a": ""},
    "corruptions/signals/__init__.py": {"5879994335301e12": "2904fbf9a3332f2a"},
    "corruptions/tokens/__init__.py": {"2d9cde67d4c10ea6": "0991655dfd145d19"},
}
"""Files of the package that compute, to the last bit, what older code did: of each, its digest -> the older one that
stands for it; "": a new file, which changes no outcome (docs/decisions/0029-foretelling-and-remaking.md)."""


class _Source(NamedTuple):
    digest: str
    imports: frozenset[str]


_loaded: dict[Path, tuple[Any, _Source]] = {}  # with the module's specification, which is a new one if it is reloaded


def of_file(file: Path) -> str:
    """Return the digest of a file outside this package, with what it imports from its package or its folder."""
    file = file.resolve()
    root = next(folder for folder in file.parents if not (folder / "__init__.py").is_file())
    top = root / file.relative_to(root).parts[0]
    home = file.parent if top == file else top
    if root in INSTALLED and (written := _written_by_installer(top.stem)):
        return digest_of(written)
    return _digest(file, root, lambda path: home in path.parents and home not in INSTALLED and not is_own(path))


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


@cache
def of_own(module: str, *rooms: str) -> str:
    """Return the digest of a module of this package, with what it imports from these rooms of the package."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    inside = {PACKAGE / room for room in rooms}
    return _digest(Path(spec.origin), PACKAGE.parent, lambda path: not inside.isdisjoint((path, *path.parents)))


def is_own(file: Path) -> bool:
    """Whether a file is of this package."""
    return PACKAGE in file.parents


def is_installed(file: Path) -> bool:
    """Whether a file is of Python, of this package or of an installed one; a record names the versions of these."""
    return is_own(file) or not INSTALLED.isdisjoint(file.parents)


def _digest(file: Path, root: Path, counts: Callable[[Path], bool]) -> str:
    """Return the digest of a file and of all that it imports, directly or not, from `root`, where that `counts`."""
    specs: dict[str, Any] = {}
    for module in list(sys.modules.values()):
        spec = getattr(module, "__dict__", {}).get("__spec__")
        specs[getattr(spec, "origin", None) or ""] = spec
    digests: dict[Path, str] = {}
    todo = [file]
    while todo:
        path = todo.pop()
        if path in digests:
            continue
        source = _source(path, root, specs.get(str(path)))
        known = EQUAL.get(path.relative_to(PACKAGE).as_posix(), {}) if is_own(path) else {}
        digests[path] = known.get(source.digest, source.digest)
        todo += [
            path
            for name in source.imports
            for place in {root, file.parent}
            for path in _files(name, place)
            if counts(path)
        ]
    named = (f"{path.relative_to(root).as_posix()} {digest}" for path, digest in digests.items() if digest)
    return digest_of("\n".join(sorted(named)))


def _source(file: Path, root: Path, spec: Any) -> _Source:
    """Return what a file says, or said when its module was loaded, if it has been asked for since."""
    if spec is None or _loaded.get(file, (None,))[0] is not spec:
        _loaded[file] = spec, _parsed(file, ".".join(file.relative_to(root).parent.parts))
    return _loaded[file][1]


def _parsed(file: Path, package: str) -> _Source:
    content = file.read_bytes()
    try:
        tree = ast.parse(content)
        return _Source(digest_of(bare(tree)), frozenset(imported(tree, package)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # not to be parsed: by its bytes
        return _Source(digest_of(content.decode("latin-1")), frozenset())


def _files(name: str, root: Path) -> Iterable[Path]:
    """Return the files that importing a full name runs, of those below `root`: its packages, and the module."""
    place = root
    for part in name.split("."):
        place /= part
        for file in (place / "__init__.py", place.with_name(f"{part}.py")):
            if file.is_file():
                yield file.resolve()
