"""Python code as text that has no comments, docstrings or layout, and what it imports."""

import ast
import hashlib
from collections.abc import Iterator
from typing import Any

DIGITS = 16
"""Hexadecimal digits of a digest."""
_SILENT = ("ctx", "kind", "type_comment")  # fields of a syntax tree that change nothing


def digest_of(text: str) -> str:
    """Return the digest of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def bare(node: Any) -> str:
    """Return a syntax tree as text.

    Written here, since that of `ast.dump` differs between versions of Python: a field without a value is left out.
    """
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if name not in _SILENT]
        written = [f"{name}={bare(value)}" for name, value in fields if value is not None and value != []]
        return f"{type(node).__name__}({','.join(written)})"
    if isinstance(node, list):
        return f"[{','.join(bare(item) for item in node if not _is_remark(item))}]"
    return ascii(node)


def _is_remark(node: Any) -> bool:
    """Whether a statement is a bare string, such as a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the full names of modules that a module of `package` imports, and of what may be modules in them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            place = ".".join([*above, *([node.module] if node.module else [])])
            yield place
            yield from (f"{place}.{alias.name}" for alias in node.names)
