"""Text from records inside Markdown: it stays text."""

from html import escape


def plain(text: str) -> str:
    """Return a text in one line that is neither Markdown nor HTML, also inside a table."""
    one_line = escape(" ".join(text.split()), quote=False)
    for letter in ("\\", "|", "[", "]", "*", "_"):
        one_line = one_line.replace(letter, f"\\{letter}")
    return one_line.replace("`", "'")
