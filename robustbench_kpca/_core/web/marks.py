"""Text from records inside Markdown: it stays text."""

import re

from robustbench_kpca._core.errors import printable, printable_lines
from robustbench_kpca._core.web import href

_CODE = re.compile(r"(`[^`\n]+`)")
_CODE_OVER_LINES = re.compile(r"(`(?:[^`\n]|\n(?!\n))+`)")
_BLOCK = re.compile(r"\n(?=#|>|~~~|[-+](?:\s|$)|[0-9]+[.)]|[-=]+$)", re.MULTILINE)
_FIRST_BLOCK = re.compile(r"^([0-9]*)([-#>~+=.)])")
_ENTITY = re.compile(r"&(?=#?[A-Za-z0-9]+;)")
_MARKED = re.compile(r"[\\|\[\]*]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def plain(text: str) -> str:
    """Return a text in one line that is neither Markdown nor HTML, also inside a table.

    An underscore inside a word marks nothing, and stays.
    """
    one_line = _ENTITY.sub("&amp;", printable(" ".join(text.split()))).replace("<", "&lt;").replace(">", "&gt;")
    return _MARKED.sub(lambda mark: f"\\{mark[0]}", one_line).replace("`", "'")


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
    outside = [edged(part) for part in parts[::2]]
    inside = [code(part.strip("`")) for part in parts[1::2]]
    return "".join(part for pair in zip(outside, [*inside, ""], strict=True) for part in pair)


def paragraph(text: str) -> str:
    """Return `prose` of several lines, which stay; one that would begin a heading, list or quotation is joined."""
    lines = "\n".join(line.strip() for line in text.strip().splitlines())
    parts = _CODE_OVER_LINES.split(lines)
    outside = ["\n".join(map(edged, part.split("\n"))) for part in parts[::2]]
    inside = [f"`{printable_lines(part.strip('`'))}`" for part in parts[1::2]] + [""]
    escaped = "".join(part for pair in zip(outside, inside, strict=True) for part in pair)
    return _FIRST_BLOCK.sub(r"\1\\\2", _BLOCK.sub(" ", escaped))


def link(text: str, address: str) -> str:
    """Return a link whose words are `plain` text; these words alone where no page may link there (`web.href`)."""
    target = href(address).replace("&", "&amp;").replace("(", "%28").replace(")", "%29")
    return f"[{plain(text)}]({target})" if target else plain(text)


def edged(text: str) -> str:
    """Return `plain` text that keeps a space at its ends, where code stands beside it."""
    return f"{' ' * text[:1].isspace()}{plain(text)}{' ' * (bool(text.strip()) and text[-1:].isspace())}"
