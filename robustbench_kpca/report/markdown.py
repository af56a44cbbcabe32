"""Text from records inside Markdown: it stays text."""

import re

from robustbench_kpca.errors import printable

_CODE = re.compile(r"(`[^`\n]+`)")
_ENTITY = re.compile(r"&(?=#?[A-Za-z0-9]+;)")
_MARKED = re.compile(r"[\\|\[\]*]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def plain(text: str) -> str:
    """Return a text in one line that is neither Markdown nor HTML, also inside a table.

    An underscore inside a word marks nothing, and stays.
    """
    one_line = _ENTITY.sub("&amp;", printable(" ".join(text.split()))).replace("<", "&lt;").replace(">", "&gt;")
    return _MARKED.sub(lambda found: f"\\{found[0]}", one_line).replace("`", "'")


def code(text: str) -> str:
    """Return a text in one line as code, also inside a table."""
    return f"`{unquoted(' '.join(text.split())) or ' '}`".replace("|", "\\|")


def unquoted(text: str) -> str:
    """Return a text that can stand between backticks."""
    return printable(text).replace("`", "'")


def quoted(title: str) -> str:
    """Return a title between quotation marks, so that it can stand in a sentence."""
    return f"“{title}”"


def unmarked(text: str) -> str:
    """Return a sentence without its backticks, for pages that are not Markdown."""
    return text.replace("`", "").strip()


def prose(text: str) -> str:
    """Return a sentence as `plain` text, but for what stands between backticks, which is code."""
    parts = _CODE.split(text)
    outside = [_edges(part) for part in parts[::2]]
    inside = [code(part.strip("`")) for part in parts[1::2]]
    return "".join(part for pair in zip(outside, [*inside, ""], strict=True) for part in pair)


def _edges(text: str) -> str:
    """Return `plain` text that keeps a space at its ends, where code stands beside it."""
    return f"{' ' * text[:1].isspace()}{plain(text)}{' ' * (bool(text.strip()) and text[-1:].isspace())}"
