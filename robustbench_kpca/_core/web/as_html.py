"""Pages as HTML: one file that makes no request."""

from collections.abc import Sequence

from markupsafe import Markup, escape

from robustbench_kpca._core.errors import printable_lines
from robustbench_kpca._core.web import href, render
from robustbench_kpca._core.web.document import (
    PAGE,
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

_ITEM = Markup("<li>{}</li>")
_SHORT = 26  # characters of a cell that is not broken


def html(document: Document) -> str:
    """Render a page."""
    return render(
        "page.html.j2", "_core.web", title=document.title, body=_blocks(document.blocks), mark=document.mark,
        style=document.style, script=document.script,
    )  # fmt: skip


def line(shown: Line) -> Markup:
    """Render a line."""
    match shown:
        case str():
            return escape(printable_lines(shown))
        case Prose(text):
            return _prose(text)
        case Numbers(text):
            return escape(text)
        case Code(text):
            return Markup("<code>{}</code>").format(line(text))
        case Strong(text):
            return Markup("<strong>{}</strong>").format(line(text))
        case Link(text, address, folder):
            target = href(f"{folder}/{PAGE}" if folder else address)
            return Markup('<a href="{}">{}</a>').format(target, line(text)) if target else line(text)
        case Verdict(text, kind):
            return Markup('<span class="verdict {}">{}</span>').format(kind, line(text))
        case _:
            return Markup("").join(map(line, shown))


def _prose(text: str) -> Markup:
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without another one
        return line(text)
    return Markup("").join(line(Code(part)) if place % 2 else line(part) for place, part in enumerate(parts))


def _blocks(blocks: Sequence[Block]) -> Markup:
    return Markup("\n").join(map(_block, blocks))


def _block(block: Block) -> Markup:
    match block:
        case Heading(text, name, level):
            return Markup("<h{0}{1}>{2}</h{0}>").format(level, _id(name), line(text))
        case Paragraph(text, soft):
            return Markup("<p{}>{}</p>").format(Markup(' class="soft"') if soft else "", line(text))
        case Bullets(items):
            return Markup("<ul>\n{}\n</ul>").format(Markup("\n").join(_ITEM.format(line(item)) for item in items))
        case Table():
            return _table(block)
        case Figure(svg, caption, _):
            shown = Markup("<figcaption>{}</figcaption>").format(line(caption)) if caption else ""
            return Markup('<figure>{}<div class="scroll">{}</div></figure>').format(shown, Markup(svg))  # noqa: S704 (drawn here)
        case Details(summary, inside, is_open):
            return Markup("<details{}><summary>{}</summary>\n{}\n</details>").format(
                " open" if is_open else "", line(summary), _blocks(inside)
            )
        case Card(question, verdict, inside):
            head = Markup('<h2>{}</h2>\n<p class="says">{}</p>').format(line(question), line(verdict))
            return Markup('<section class="card">{}\n{}</section>').format(head, _blocks(inside))
        case Widget(template, room, values, _):
            return Markup(render(template, room, **values))  # noqa: S704 (a template escapes)


def _table(table: Table) -> Markup:
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


def _cells(row: Sequence[Line]) -> Markup:
    first, *others = row
    shown = [Markup('<th scope="row" class="pin">{}</th>').format(line(first))]
    for cell in others:
        short = Markup(' class="short"') if len(line(cell).striptags()) < _SHORT else ""
        shown.append(Markup("<td{}>{}</td>").format(short, line(cell)))
    return Markup("").join(shown)


def _id(name: str) -> Markup:
    return Markup(' id="{}"').format(name) if name else Markup("")
