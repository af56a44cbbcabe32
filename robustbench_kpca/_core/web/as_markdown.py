"""Pages as GitHub-flavoured Markdown."""

from collections.abc import Iterator, Sequence

from tabulate import tabulate

from robustbench_kpca._core.web import document as doc
from robustbench_kpca._core.web.marks import code, edged, link, paragraph, plain, prose

_TOLD = ("supported", "not-supported")


def markdown(document: doc.Document) -> str:
    """Render a page; it ends with a line feed."""
    return "\n\n".join([f"# {plain(document.title)}", *_blocks(document.blocks), *filter(None, [document.mark])]) + "\n"


def line(content: doc.Line) -> str:
    """Render a line."""
    match content:
        case str():
            return plain(content)
        case doc.Prose(text):
            return prose(text)
        case doc.Code(text):
            return code(text)
        case doc.Numbers(text):
            return text
        case doc.Strong(text):
            return f"**{line(text)}**"
        case doc.Link(text, address, _) if address.startswith("#"):  # headings have names of their own there
            return plain(text)
        case doc.Link(text, address, folder):
            return link(text, f"{folder}/{doc.README}" if folder else address)
        case doc.Verdict(text, kind):
            return f"**{plain(text)}**" if kind in _TOLD else plain(text)
        case _:
            return "".join(edged(word) if isinstance(word, str) else line(word) for word in content)


def _blocks(blocks: Sequence[doc.Block]) -> Iterator[str]:
    for block in blocks:
        match block:
            case doc.Heading(text, _, level):
                yield f"{'#' * level} {line(text)}"
            case doc.Paragraph(doc.Prose(text), _):
                yield paragraph(text)
            case doc.Paragraph(text, _):
                yield line(text)
            case doc.Bullets(items):
                yield "\n".join(f"- {line(item)}" for item in items)
            case doc.Table():
                yield _table(block)
            case doc.Figure(_, caption, file):
                if file:
                    yield f"!{link(_alt(caption), file)}"
            case doc.Details(summary, inside):
                parts = list(_blocks(inside))
                if parts:
                    yield "\n\n".join([f"<details><summary>{line(summary)}</summary>", *parts, "</details>"])
            case doc.Card(question, verdict, inside):
                yield f"### {line(question)}"
                yield f"**{plain(verdict.text)}**"
                yield from _blocks(inside)
            case doc.Widget(_, _, _, inside):
                yield from _blocks(inside)


def _table(table: doc.Table) -> str:
    cells = [[line(cell) for cell in row] for row in table.rows]
    heads = [line(head) or " " for head in table.heads]
    text: str = tabulate(cells, heads, tablefmt="github", disable_numparse=True)
    return f"{plain(table.caption)}\n\n{text}" if table.caption else text


def _alt(caption: doc.Line) -> str:
    return caption if isinstance(caption, str) else "figure"
