"""Pages as HTML: one file that makes no request."""

from collections.abc import Sequence
from itertools import groupby

from markupsafe import Markup, escape

from robustbench_kpca._core.errors import printable_lines
from robustbench_kpca._core.web import document as doc
from robustbench_kpca._core.web import href, render

_ITEM = Markup("<li>{}</li>")
_SHORT = 26  # characters of a cell that is not broken


def html(document: doc.Document) -> str:
    """Render a page."""
    return render(
        "page.html.j2",
        "_core.web",
        title=document.title,
        body=_blocks(document.blocks),
        mark=document.mark,
        style=document.style,
        script=document.script,
    )


def line(content: doc.Line) -> Markup:
    """Render a line."""
    match content:
        case str():
            return escape(printable_lines(content))
        case doc.Prose(text):
            return _prose(text)
        case doc.Numbers(text):
            return escape(text)
        case doc.Code(text):
            return Markup("<code>{}</code>").format(line(text))
        case doc.Strong(text):
            return Markup("<strong>{}</strong>").format(line(text))
        case doc.Link(text, address, folder):
            target = href(f"{folder}/{doc.PAGE}" if folder else address)
            return Markup('<a href="{}">{}</a>').format(target, line(text)) if target else line(text)
        case doc.Verdict(text, kind):
            return Markup('<span class="verdict {}">{}</span>').format(kind, line(text))
        case _:
            return Markup("").join(map(line, content))


def _prose(text: str) -> Markup:
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without another one
        return line(text)
    return Markup("").join(line(doc.Code(part)) if place % 2 else line(part) for place, part in enumerate(parts))


def _blocks(blocks: Sequence[doc.Block]) -> Markup:
    shown = []
    for are_cards, group in groupby(blocks, lambda block: isinstance(block, doc.Card)):
        text = Markup("\n").join(map(_block, group))
        shown.append(Markup('<div class="cards">\n{}\n</div>').format(text) if are_cards else text)
    return Markup("\n").join(shown)


def _block(block: doc.Block) -> Markup:
    match block:
        case doc.Heading(text, name, level):
            return Markup("<h{0}{1}>{2}</h{0}>").format(level, _id(name), line(text))
        case doc.Paragraph(text, soft):
            return Markup("<p{}>{}</p>").format(Markup(' class="soft"') if soft else "", line(text))
        case doc.Bullets(items):
            return Markup("<ul>\n{}\n</ul>").format(Markup("\n").join(_ITEM.format(line(item)) for item in items))
        case doc.Table():
            return _table(block)
        case doc.Figure(svg, caption, _):
            legend = Markup("<figcaption>{}</figcaption>").format(line(caption)) if caption else ""
            return Markup('<figure>{}<div class="scroll">{}</div></figure>').format(legend, Markup(svg))  # noqa: S704 (drawn here)
        case doc.Details(summary, inside, is_open):
            return Markup("<details{}><summary>{}</summary>\n{}\n</details>").format(
                " open" if is_open else "", line(summary), _blocks(inside)
            )
        case doc.Card(question, verdict, inside):
            head = Markup('<h2>{}</h2>\n<p class="says">{}</p>').format(line(question), line(verdict))
            return Markup('<section class="card">{}\n{}</section>').format(head, _blocks(inside))
        case doc.Widget(template, room, values, _):
            return Markup(render(template, room, **values))  # noqa: S704 (a template escapes)


def _table(table: doc.Table) -> Markup:
    name = table.caption or "table"
    heads = [
        Markup('<th scope="col"{}>{}</th>').format("" if place else Markup(' class="pin"'), line(head))
        for place, head in enumerate(table.heads)
    ]
    rows = Markup("\n").join(Markup("<tr>{}</tr>").format(_cells(row)) for row in table.rows)
    caption = Markup("<caption>{}</caption>").format(line(table.caption)) if table.caption else ""
    return Markup(
        '<div class="frame" tabindex="0" role="region" aria-label="{}"><table>{}\n<thead><tr>{}</tr></thead>\n'
        "<tbody>\n{}\n</tbody></table></div>"
    ).format(name, caption, Markup("").join(heads), rows)


def _cells(row: Sequence[doc.Line]) -> Markup:
    first, *rest = row
    cells = [Markup('<th scope="row" class="pin">{}</th>').format(line(first))]
    for text in map(line, rest):
        short = Markup(' class="short"') if len(text.striptags()) < _SHORT else ""
        cells.append(Markup("<td{}>{}</td>").format(short, text))
    return Markup("").join(cells)


def _id(name: str) -> Markup:
    return Markup(' id="{}"').format(name) if name else Markup("")
