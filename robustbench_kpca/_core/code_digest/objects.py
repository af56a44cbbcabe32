"""The digest of the code of a class, a function or an object, wherever that was defined."""

import ast
import linecache
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from symtable import SymbolTable, symtable
from types import FunctionType, ModuleType
from typing import Any

from robustbench_kpca._core.code_digest.files import is_installed, is_own, of_file
from robustbench_kpca._core.code_digest.syntax import bare, digest_of

_MAIN = ("__main__", "__mp_main__")  # the script; the second in a process that `multiprocessing` started
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_PLAIN = (bool, int, float, complex, str, bytes, tuple, type(None))


def of_object(member: Any) -> str:
    """Return the digest of the code of an object that is not of this package; "" where its code cannot be read.

    It is that of the files of its class and of those that this derives from; of a function, of its file. Of what a
    script or a notebook defines, it is that of the definition, and of all that it names there.
    """
    first, *bases = _kinds(member)
    kinds = [first, *filter(is_foreign, bases)]
    digests = [_of_kind(kind, set()) for kind in kinds if not _is_own(kind)]
    return digest_of("\n".join(digests)) if all(digests) else ""


def is_foreign(kind: Any) -> bool:
    """Whether a class or function is neither of Python nor of an installed package, this one included."""
    file = _file(kind)
    return kind.__module__ in _MAIN or (file is not None and not is_installed(file))


def _kinds(member: Any) -> list[Any]:
    """Return the function, or the class and all that it derives from."""
    while isinstance(member, partial) or (hasattr(member, "__wrapped__") and not isinstance(member, type)):
        member = member.func if isinstance(member, partial) else member.__wrapped__
    if isinstance(member, FunctionType):
        return [member]
    return list((member if isinstance(member, type) else type(member)).__mro__)


def _is_own(kind: Any) -> bool:
    file = _file(kind)
    return file is not None and is_own(file)


def _file(kind: Any) -> Path | None:
    """Return the file of the module that defines a class or function; None for what is built in."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return None if file is None else Path(file).resolve()


def _of_kind(kind: Any, seen: set[str]) -> str:
    if kind.__module__ in _MAIN:
        return _of_script(kind, seen)
    file = _file(kind) or next((Path(name) for name in _written_in(kind) if Path(name).is_file()), None)
    return "" if file is None else of_file(file)


def _of_script(kind: Any, seen: set[str]) -> str:
    """Return the digest of a definition in a script or a cell of a notebook; `seen`: names that are in another."""
    name = kind.__qualname__.partition(".")[0]
    statements, names = _definition(name, kind)
    fresh = sorted(names - seen)
    seen |= names
    scope = vars(sys.modules["__main__"])
    values = [_of_value(scope[used], seen, elsewhere=not _binds(statements, used)) for used in fresh if used in scope]
    return digest_of("\n".join([*map(bare, statements), *values])) if statements else ""


def _of_value(value: Any, seen: set[str], *, elsewhere: bool) -> str:
    """Return the digest of what a definition names; that of a script counts only if it is `elsewhere`."""
    if isinstance(value, ModuleType):
        file = getattr(value, "__file__", None)
        return "" if file is None or is_installed(Path(file).resolve()) else of_file(Path(file))
    if isinstance(value, (type, FunctionType)):
        own = value.__module__ in _MAIN
        return _of_kind(value, seen) if is_foreign(value) and (elsewhere or not own) else ""
    return ascii(value) if elsewhere and isinstance(value, _PLAIN) else ""


def _definition(name: str, kind: Any) -> tuple[list[ast.stmt], set[str]]:
    """Return the statements that define a name, and all that these name, in their order; and all those names."""
    for file in (*_written_in(kind), getattr(sys.modules["__main__"], "__file__", None) or ""):
        text = "".join(linecache.getlines(file))
        try:
            body, table = ast.parse(text).body, symtable(text, file, "exec")
        except SyntaxError:
            continue
        if _binds(body, name):
            return _needed(body, table, name)
    return [], set()


def _written_in(kind: Any) -> Iterator[str]:
    """Yield the files, or cells of a notebook, in which a function or the methods of a class are written."""
    members = [kind] if isinstance(kind, FunctionType) else vars(kind).values()
    for member in members:
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        function = getattr(function, "__wrapped__", function)
        if isinstance(function, FunctionType):
            yield function.__code__.co_filename


def _needed(body: list[ast.stmt], table: SymbolTable, name: str) -> tuple[list[ast.stmt], set[str]]:
    names, taken = {name}, list[ast.stmt]()
    while fresh := [statement for statement in body if statement not in taken and names & _bound(statement)]:
        taken += fresh
        names |= {used for statement in fresh for used in _used(statement, table)}
    return [statement for statement in body if statement in taken], names


def _used(statement: ast.stmt, table: SymbolTable) -> Iterator[str]:
    """Yield the names outside a statement that it reads; local names of a function are its own."""
    within = [part for part in ast.iter_child_nodes(statement) if part not in getattr(statement, "body", ())]
    outer = within if isinstance(statement, _DEFINITIONS) else [statement]
    yield from (node.id for part in outer for node in ast.walk(part) if isinstance(node, ast.Name))
    if isinstance(statement, _DEFINITIONS):
        scopes = [child for child in table.get_children() if child.get_name() == statement.name]
        for scope in scopes:
            yield from (symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global())
            scopes += scope.get_children()


def _binds(body: Iterable[ast.stmt], name: str) -> bool:
    return any(name in _bound(statement) for statement in body)


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names to which a statement gives a value, or of whose value it changes a part."""
    if isinstance(statement, _DEFINITIONS):
        return {statement.name}
    names = set[str]()
    for node in ast.walk(statement):
        if isinstance(node, _DEFINITIONS):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
        elif isinstance(getattr(node, "ctx", None), ast.Store):
            names |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return names
