"""A page is a value: both renderings say the same, and no text of a record becomes markup."""

import re

from hypothesis import given
from hypothesis import strategies as st

from robustbench_kpca._core.web.as_html import html
from robustbench_kpca._core.web.as_markdown import line, markdown
from robustbench_kpca._core.web.document import (
    Bullets,
    Card,
    Code,
    Details,
    Document,
    Figure,
    Heading,
    Link,
    Numbers,
    Paragraph,
    Prose,
    Strong,
    Table,
    Verdict,
)
from robustbench_kpca._core.web.figures import drawing, svg_of
from robustbench_kpca._core.web.write import write_page

SVG = '<svg width="1"><text>drawn</text></svg>'
PAGE = Document(
    "A page",
    [
        Heading(("What: ", Verdict("helps", "supported")), "what"),
        Paragraph(Prose("See `code` and words.")),
        Bullets([Strong("one"), Link("two", folder="there"), Link("three", "https://example.org/a")]),
        Table(("Row", "Value"), [("a|b", Numbers("1.0 [0.5, 1.5]")), ("c", Code("x"))], "Numbers"),
        Figure(SVG, "A drawing", "drawing.svg"),
        Details("More", [Paragraph("inside"), Details("Still more", [Paragraph("deep")])]),
        Card("Does it help?", Verdict("no difference found", "not-testable"), [Paragraph("+0.1")]),
    ],
    mark="<!-- made here -->",
)


def test_both_renderings_say_the_same_as_github_shows():
    shown = [
        re.sub(r"<[^>]+>|[*`#|\\\[\]()_-]", " ", text) for text in (markdown(PAGE), html(PAGE).partition("<main>")[2])
    ]
    for word in ("A page", "What", "helps", "code", "one", "two", "three", "0.5, 1.5", "More", "inside", "deep",
                 "Does it help?", "no difference found", "+0.1"):  # fmt: skip
        assert all(word in text for text in shown), word
    text = markdown(PAGE)
    assert text.startswith("# A page\n\n## What: **helps**\n\nSee `code` and words.\n")
    assert "- **one**\n- [two](there/README.md)\n- [three](https://example.org/a)\n" in text
    assert re.search(r"\| a\\\|b +\| 1.0 \[0.5, 1.5\] +\|", text)
    assert "![A drawing](drawing.svg)" in text
    assert "<details><summary>More</summary>\n\ninside\n\n" in text
    assert text.endswith("<!-- made here -->\n")


@given(st.text(max_size=40))
def test_no_text_becomes_markup(text):
    for word in (text, Prose(text), Code(text), Strong(text), Link(text, "a.md"), Verdict(text, "supported")):
        page = Document("t", [Paragraph(word), Bullets([word]), Table(("h",), [(word,)])])
        shown = html(page).partition("<main>")[2]
        assert not re.findall(
            r"<(?!/?(?:main|h1|p|code|strong|a|span|ul|li|div|table|thead|tbody|tr|th|td|body|html)\b)", shown
        )
        assert "\n" not in line(word)
        assert "<script" not in markdown(page).lower()


def test_a_page_is_two_files_and_its_drawings(tmp_path):
    assert [path.name for path in write_page(PAGE, tmp_path)] == ["README.md", "index.html"]
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "index.html", "drawing.svg"}
    assert (tmp_path / "README.md").read_text() == markdown(PAGE)
    assert "background: #fff" in (tmp_path / "drawing.svg").read_text()


def test_a_drawing_shows_no_formulas_on_a_logarithmic_axis():
    with drawing((3, 2)) as (figure, buffer):
        figure.subplots().set(xscale="log", yscale="symlog", xlim=(1e-4, 10), ylim=(-100, 100))
    assert "$" not in (drawn := svg_of(buffer, "t"))
    assert ">0.001</text>" in drawn
    assert ">-100</text>" in drawn
