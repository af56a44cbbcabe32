"""The names of attacks, of the package and of other libraries; no torch."""

import ast
import importlib.util
from pathlib import Path

from robustbench_kpca._core.registry import close_names, unknown_name
from robustbench_kpca.attacks import ATTACKS

AUTOATTACK = ("standard", "plus", "rand", "apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square")
"""Ensembles and single attacks of pyautoattack, which are no names of its own."""
_FILES: dict[str, str | tuple[str, ...]] = {
    "torchattacks": "__init__.py",
    "foolbox": "attacks/__init__.py",
    "pyautoattack": AUTOATTACK,
}
"""Libraries of attacks, and the file of each that imports all of its attacks, or their names."""


def library_of(name: str) -> str:
    """Return the library of an attack `LIBRARY:NAME`; "" for one of the package or an address."""
    library, colon, _ = name.partition(":")
    return library if colon and library in _FILES else ""


def require_attack(name: str) -> None:
    """Refuse the name of no attack, without importing its library; of a library that is not there nothing is known.

    The code of an address is not run.

    Raises:
        UnknownNameError: there is no such attack or library.
    """
    library, colon, attack = name.partition(":")
    if not library_of(name):
        if colon and close_names(library, _FILES):
            raise unknown_name("attack library", library, _FILES)
        ATTACKS.require(name)
        return
    names = library_names(library)
    if names and attack not in names:
        raise unknown_name(f"attack of {library}", attack, names)


def library_names(library: str) -> list[str]:
    """Return what may be an attack of a library, read from its files: to import it takes seconds."""
    source = _FILES[library]
    if not isinstance(source, str):
        return list(source)
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        return []
    tree = ast.parse((Path(spec.origin).parent / source).read_text("utf-8"))
    imported = [alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    aliases = [ast.unparse(node.targets[0]) for node in tree.body if isinstance(node, ast.Assign)]
    return [name for name in imported + aliases if name[0].isupper()]
