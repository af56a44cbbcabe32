"""The names of attacks, of the package and of other libraries; no torch."""

import ast
import importlib.util
from pathlib import Path

from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca.attacks import ATTACKS

AUTOATTACK = ("standard", "plus", "rand", "apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square")
"""Ensembles and single attacks of pyautoattack, which are no names of its own."""
_FILES = {"torchattacks": "__init__.py", "foolbox": "attacks/__init__.py", "pyautoattack": ""}
"""Libraries of attacks, and the file of each that imports all of its attacks."""


def require_attack(name: str) -> None:
    """Refuse the name of no attack, without importing its library; of a library that is not there nothing is known.

    Raises:
        UnknownNameError: there is no such attack or library.

    """
    library, colon, attack = name.partition(":")
    if not colon:
        ATTACKS.require(name)
        return
    if library not in _FILES:
        raise unknown_name("attack library", library, _FILES)
    known = library_names(library)
    if known and attack not in known:
        raise unknown_name(f"attack of {library}", attack, known)


def library_names(library: str) -> list[str]:
    """Return what may be an attack of a library, read from its files: to import it takes seconds."""
    if not _FILES[library]:
        return list(AUTOATTACK)
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        return []
    tree = ast.parse((Path(spec.origin).parent / _FILES[library]).read_text("utf-8"))
    imported = [alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    aliases = [ast.unparse(node.targets[0]) for node in tree.body if isinstance(node, ast.Assign)]
    return [name for name in imported + aliases if name[0].isupper()]
