"""Pages as GitHub-flavoured Markdown."""

from collections.abc import Iterator, Sequence

from tabulate import tabulate

from robustbench_kpca._core.web.document import (
    README,
    Block,
    Bullets,
    Card,
    Code,
    Details,
    Document,
    Figure,
    Heading,
    Line,
    Link,
    Numbers,
    Paragraph,
    Prose,
    Strong,
    Table,
    Verdict,
    Widget,
)
from robustbench_kpca._core.web.marks import code, link, paragraph, plain, prose

_TOLD = ("supported", "not-supported")


def markdown(document: Document) -> str:
    """Render a page; it ends with a line feed."""
    return "\n\n".join([f"# {plain(document.title)}", *_blocks(document.blocks), *filter(None, [document.mark])]) + "\n"


def line(shown: Line) -> str:
    """Render a line."""
    match shown:
        case str():
            return plain(shown)
        case Prose(text):
            return prose(text)
        case Code(text):
            return code(text)
        case Numbers(text):
            return text
        case Strong(text):
            return f"**{line(text)}**"
        case Link(text, address, _) if address.startswith("#"):  # headings have names of their own there
            return plain(text)
        case Link(text, address, folder):
            return link(text, f"{folder}/{README}" if folder else address)
        case Verdict(text, kind):
            return f"**{plain(text)}**" if kind in _TOLD else plain(text)
        case _:
            return "".join(_spaced(word) for word in shown)


def _spaced(word: Line) -> str:
    """Keep the spaces at the ends of a word, which stand beside another one."""
    text = word.text if isinstance(word, Prose) else word
    if not isinstance(text, str) or not text.strip():
        return line(word) if not isinstance(text, str) else " " * bool(text)
    return f"{' ' * text[0].isspace()}{line(word)}{' ' * text[-1].isspace()}"


def _blocks(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        match block:
            case Heading(text, _, level):
                yield f"{'#' * level} {line(text)}"
            case Paragraph(Prose(text), _):
                yield paragraph(text)
            case Paragraph(text, _):
                yield line(text)
            case Bullets(items):
                yield "\n".join(f"- {line(item)}" for item in items)
            case Table():
                yield _table(block)
            case Figure(_, caption, file):
                if file:
                    yield f"!{link(_alt(caption), file)}"
            case Details(summary, inside):
                shown = list(_blocks(inside))
                if shown:
                    yield "\n\n".join([f"<details><summary>{line(summary)}</summary>", *shown, "</details>"])
            case Card(question, verdict, inside):
                yield f"### {line(question)}"
                yield f"**{plain(verdict.text)}**"
                yield from _blocks(inside)
            case Widget(_, _, _, inside):
                yield from _blocks(inside)


def _table(table: Table) -> str:
    cells = [[line(cell) for cell in row] for row in table.rows]
    heads = [line(head) or " " for head in table.heads]
    text: str = tabulate(cells, heads, tablefmt="github", disable_numparse=True)
    return f"{plain(table.caption)}\n\n{text}" if table.caption else text


def _alt(caption: Line) -> str:
    return caption if isinstance(caption, str) else "figure"
