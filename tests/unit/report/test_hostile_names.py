"""Names from records stay text: in Markdown, in HTML and on a terminal."""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from board_pages import board_text

from robustbench_kpca._core.errors import BadInputError, printable
from robustbench_kpca._core.web import href
from robustbench_kpca._core.web.as_html import html
from robustbench_kpca._core.web.document import Document
from robustbench_kpca._core.web.marks import code, link, paragraph, plain, prose
from robustbench_kpca.cli import _interruption
from robustbench_kpca.cli.main import main
from robustbench_kpca.records.record import load_record

BOARD = Path(__file__).parents[3] / "leaderboards/digits/records"
NASTY = (
    "a|b <script>alert(1)</script> `rm` \x1b[2J\x07\n# Title\n| x | \u202egnp.exe\u2066 [link](http://x) **bold** &lt;"
)
NAME = "a|b <script>alert(1)</script> `rm` # Title | x | [link](http://x) **bold** &lt;"
"""A name that a record may have: one line of letters that are seen."""
FORBIDDEN = ("\x1b", "\x07", "\u202e", "\u2066")


def unescaped_pipes(line):
    return len(re.findall(r"(?<!\\)\|", line))


def require_clean(text, *, html_escaped=True):
    assert not [one for one in FORBIDDEN if one in text]
    if html_escaped:
        without_code = re.sub(r"`[^`]*`", "", text)
        assert "<script" not in without_code
        assert not re.search(r"(?<!\\)\]\(http", without_code)
        assert "\n# Title" not in text
        for line in text.splitlines():  # every row of a table has as many cells as its head
            if line.startswith("|") and "---" in line:
                width = unescaped_pipes(line)
            elif line.startswith("|") and "width" in locals():
                assert unescaped_pipes(line) == width


@pytest.fixture
def hostile(tmp_path):
    """A folder with a record whose every free text is hostile."""
    record = load_record(next(BOARD.glob("vit_digits__*__clean__*.record.json")))
    spec, environment = record.spec, record.environment
    nasty = {
        "spec": spec.model_copy(update={"model": spec.model.model_copy(update={"name": NAME, "source": NASTY})}),
        "environment": environment.model_copy(
            update={"device": NASTY, "processor": NASTY, "packages": dict.fromkeys(("torch", "timm"), NASTY)}
        ),
        "flags": (NASTY,), "citations": (NASTY,), "command": ("rbk", NASTY),
    }  # fmt: skip
    record.model_copy(update=nasty).attach(record.outcomes).save(tmp_path / "records")
    return tmp_path


def test_texts_and_paragraphs_stay_text_in_markdown():
    for escaped in (plain(NASTY), code(NASTY), prose(NASTY)):
        assert "\n" not in escaped
        require_clean(escaped)
    assert plain("vit_digits, C&W, 2 < 3") == "vit_digits, C&W, 2 &lt; 3"
    assert plain("_a_ &lt;") == "\\_a\\_ &amp;lt;"
    assert prose("all of `a_b*c`, *not*") == "all of `a_b*c`, \\*not\\*"
    assert code("a`b|c") == "`a'b\\|c`"
    assert printable("a\tb\x1b[2J\u202e") == "a b\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}"
    require_clean(str(BadInputError(NASTY, expected=NASTY, fix=NASTY)), html_escaped=False)
    assert paragraph("Run `a\n--b`,\nthen _c_.\n") == "Run `a\n--b`,\nthen \\_c\\_."
    assert paragraph("a\n# Title\n- b\n1. c\n> d\n===\n\n<script>\n`\n# e\n> f`") == (
        "a # Title - b 1. c\n&gt; d ===\n\n&lt;script&gt;\n` # e > f`"
    )
    assert [paragraph(text) for text in ("# a", "2) b", "~~~")] == ["\\# a", "2\\) b", "\\~~~"]
    assert paragraph("`a\n\n<b>`") == "'a\n\n&lt;b&gt;'"
    page = html(Document(NASTY, []))
    require_clean(page, html_escaped=False)
    assert page.count("&lt;script&gt;") == 2


@pytest.mark.usefixtures("few_resamples")
def test_a_terminal_is_sent_no_control_characters(hostile, capsys):
    folder = str(hostile / "records")
    gate = ["check", folder, "--baseline", folder, "--fail", "clean_accuracy:-2pp"]
    main(["records", "show", folder])
    main(gate)
    captured = capsys.readouterr()
    require_clean(captured.out + captured.err, html_escaped=False)


def test_pages_in_markdown_stay_as_they_were_meant(hostile, capsys):
    from robustbench_kpca.report.compare import Rule, comment, compare
    from robustbench_kpca.report.matching import load_board
    from robustbench_kpca.report.render import markdown

    (path,) = (hostile / "records").glob("*.record.json")
    record = load_record(path)
    require_clean(comment(compare([record], [record], [Rule.parse("clean_accuracy:-2pp")])))
    data, columns = record.spec.data, {"Clean": ("clean", "clean_accuracy")}
    (hostile / "board.toml").write_text(board_text([NAME], columns, data=data.name, split=data.split, limit=data.n))
    page = markdown(load_board(str(hostile)))
    assert "not run" not in page
    assert "<summary>Flags: 1</summary>" in page
    require_clean(page)


ADDRESSES = {
    "https://arxiv.org/abs/2406.13762": "https://arxiv.org/abs/2406.13762",
    "HTTP://example.org/a?b=c#d": "HTTP://example.org/a?b=c#d",
    "../records/a b.json": "../records/a%20b.json",
    "#run-3": "#run-3",
    "javascript:alert(1)": "",
    "JaVaScRiPt:alert(1)": "",
    "java\tscript:alert(1)": "",
    "\x01javascript:alert(1)": "",
    " javascript:alert(1)": "%20javascript:alert(1)",
    "data:text/html,x": "",
    "vbscript:x": "",
    "file:///etc/passwd": "",
    "//evil.example/x": "",
    "/etc/passwd": "",
    "\\\\evil.example": "",
    "https:evil.example": "",
    "https:///evil.example": "",
    "": "",
}


def test_links_lead_to_the_web_and_beside_and_cannot_be_left():
    for address, shown in ADDRESSES.items():
        assert href(address) == href(href(address)) == shown
    assert link("a|b]", "a (b).md") == "[a\\|b\\]](a%20%28b%29.md)"
    assert link("x", "javascript&colon;alert(1)") == "[x](javascript&amp;colon;alert%281%29)"
    assert link("x", "javascript:alert(1)") == "x"
    templates = [path.read_text() for path in (BOARD.parents[2] / "robustbench_kpca").rglob("*.j2")]
    links = [one for text in templates for one in re.findall(r'href="([^"]*\{\{(?:"[^"]*"|[^"])*?\}\}[^"]*)"', text)]
    assert len(links) > 5
    assert all(one.startswith("{{") and one.endswith("| href }}") for one in links)


def test_a_paper_that_is_a_script_is_refused(tmp_path, capsys):
    paper = "javascript:alert(1)"
    text = (BOARD.parent / "board.toml").read_text()
    (tmp_path / "board.toml").write_text(text.replace('paper = "arXiv:2406.13762"', f'paper = "{paper}"'))
    assert main(["board", "render", str(tmp_path), "--records", str(BOARD)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"paper = '{paper}' of model 'rpc_symvit_digits'" in line


@pytest.mark.usefixtures("few_resamples")
def test_words_of_a_board_stay_text_everywhere(tmp_path, capsys):
    nasty = NASTY.replace("\x1b", "").replace("\x07", "").replace("\u202e", "").replace("\u2066", "")
    text = board_text(["vit_digits"], {"Clean": ("clean", "clean_accuracy")}, title=nasty, intro=nasty)
    model = f'[[model]]\nname = "vit_digits"\nattention = {json.dumps(nasty)}\npaper = "records of.html"\n'
    (tmp_path / "board.toml").write_text(text + model)
    assert main(["board", "render", str(tmp_path), "--records", str(BOARD), "-o", str(tmp_path)]) == 0
    require_clean((tmp_path / "README.md").read_text())
    page = (tmp_path / "index.html").read_text()
    assert page.count("<script>") == 1, "its own"
    assert 'href="records%20of.html"' in page
    require_clean(page, html_escaped=False)
    require_clean(capsys.readouterr().out, html_escaped=False)


def test_a_table_on_a_terminal_has_a_clean_head(capsys):
    from robustbench_kpca.cli import _console

    _console.show_table(NASTY, [NASTY], [[":smile:"]])
    _console.say(":smile:")
    shown = capsys.readouterr().out
    require_clean(shown, html_escaped=False)
    assert shown.count(":smile:") == 2


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["eval", "--model", "a b", "-o", "runs"], "rbk eval --model 'a b' -o runs"),
        (["train", "recipe", "--fresh"], "rbk train recipe --resume"),
        (["train", "recipe", "--no-resume"], "rbk train recipe --resume"),
        (["eval", "-m", "a", "--fresh"], "rbk eval -m a"),
    ],
)
def test_an_interruption_names_the_command_that_goes_on(arguments, command):
    assert _interruption.message(arguments).endswith(f": {command}")


RUN = """
import sys, time
import robustbench_kpca.cli.records_show
from robustbench_kpca.cli import main
import robustbench_kpca.records.record as record
def wait(folder):
    print("waiting", flush=True)
    time.sleep(60)
record.find_records = wait
main.run()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_every_signal_is_one_line_and_exit_code_three(name):
    heard = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # where tests run in the background
    heard += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-c", heard + RUN, "records", "show", "a b"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(getattr(signal, name))
    _, said = process.communicate(timeout=30)
    assert ("by SIGTERM" in said) == (name == "SIGTERM")
    assert process.returncode == 3
    assert shlex.split(said.partition("again: ")[2]) == ["rbk", "records", "show", "a b"]
