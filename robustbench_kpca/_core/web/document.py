"""A page as a value: headings, texts, tables, figures. `as_markdown` and `as_html` render it.

A text is shown as it is, whatever is in it. In `Prose`, what stands between backticks is code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

README, PAGE = "README.md", "index.html"
"""The files of a page."""


@dataclass(frozen=True)
class Prose:
    """Sentences with code between backticks."""

    text: str


@dataclass(frozen=True)
class Code:
    """A word of code."""

    text: str


@dataclass(frozen=True)
class Numbers:
    """Numbers of our own, which no mark of Markdown can be in."""

    text: str


@dataclass(frozen=True)
class Strong:
    """What is bold."""

    text: "Line"


@dataclass(frozen=True)
class Link:
    """A link: to another page, where `folder` is the way to its folder; or else to an `address`."""

    text: str
    address: str = ""
    folder: str = ""


@dataclass(frozen=True)
class Verdict:
    """A word in the colour of what it says: `kind` is (not-)supported, equivalent, not-testable or not-measured."""

    text: str
    kind: str


Word: TypeAlias = "str | Prose | Code | Numbers | Strong | Link | Verdict"
Line: TypeAlias = "Word | Sequence[Word]"


@dataclass(frozen=True)
class Heading:
    """A heading below that of the page; `id` is its name in links."""

    text: Line
    id: str = ""
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; `soft` ones are small print."""

    text: Line
    soft: bool = False


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: Sequence[Line]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        heads: heads of the columns.
        rows: rows of cells; the first one names the row.
        caption: what it shows.
    """

    heads: Sequence[Line]
    rows: Sequence[Sequence[Line]]
    caption: str = ""


@dataclass(frozen=True)
class Figure:
    """A drawing.

    Attributes:
        svg: its text, from `<svg` on.
        caption: what it shows.
        file: name of the file beside the page that has it; without one, Markdown leaves it out.
    """

    svg: str
    caption: Line = ""
    file: str = ""


@dataclass(frozen=True)
class Details:
    """Blocks that unfold below a line."""

    summary: Line
    blocks: Sequence["Block"]
    open: bool = False


@dataclass(frozen=True)
class Card:
    """A question with one word as its answer, and what is below it."""

    question: Line
    verdict: Verdict
    blocks: Sequence["Block"]


@dataclass(frozen=True)
class Widget:
    """What a template shows in HTML, and these blocks show in Markdown.

    Attributes:
        template: its file in the folder `templates` of a room.
        room: such as `report`.
        values: what the template is given.
        blocks: the same for Markdown.
    """

    template: str
    room: str
    values: Mapping[str, Any]
    blocks: Sequence["Block"] = ()


Block: TypeAlias = "Heading | Paragraph | Bullets | Table | Figure | Details | Card | Widget"


@dataclass(frozen=True)
class Document:
    """A page.

    Attributes:
        title: its heading.
        blocks: in order.
        mark: a comment at its end, by which the program knows its own pages.
        style: of this kind of page, as CSS; script: its JavaScript.
    """

    title: str
    blocks: Sequence[Block]
    mark: str = ""
    style: str = ""
    script: str = ""
