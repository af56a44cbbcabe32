"""Names from records stay text: in Markdown, in HTML and on a terminal."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from robustbench_kpca.cli import _interruption
from robustbench_kpca.cli.main import main
from robustbench_kpca.errors import BadInputError, printable
from robustbench_kpca.records.record import load_record
from robustbench_kpca.report.markdown import code, plain, prose

BOARD = Path(__file__).parents[2] / "leaderboards/digits/records"
NASTY = (
    "a|b <script>alert(1)</script> `rm` \x1b[2J\x07\n# Title\n| x | \u202egnp.exe\u2066 [link](http://x) **bold** &lt;"
)
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
        "spec": spec.model_copy(update={"model": spec.model.model_copy(update={"name": NASTY, "source": NASTY})}),
        "environment": environment.model_copy(
            update={"device": NASTY, "processor": NASTY, "packages": dict.fromkeys(("torch", "timm"), NASTY)}
        ),
        "flags": (NASTY,), "citations": (NASTY,), "command": ("rbk", NASTY),
    }  # fmt: skip
    record.model_copy(update=nasty).attach(record.outcomes).save(tmp_path / "records")
    return tmp_path


def test_texts_stay_text_in_markdown():
    for escaped in (plain(NASTY), code(NASTY), prose(NASTY)):
        assert "\n" not in escaped
        require_clean(escaped)
    assert plain("vit_digits, C&W, 2 < 3") == "vit_digits, C&W, 2 &lt; 3"
    assert plain("_a_ &lt;") == "\\_a\\_ &amp;lt;"
    assert prose("all of `a_b*c`, *not*") == "all of `a_b*c`, \\*not\\*"
    assert code("a`b|c") == "`a'b\\|c`"
    assert printable("a\tb\x1b[2J\u202e") == "a b\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}"
    require_clean(str(BadInputError(NASTY, expected=NASTY, fix=NASTY)), html_escaped=False)


@pytest.mark.usefixtures("few_resamples")
def test_a_terminal_is_sent_no_control_characters(hostile, capsys):
    folder = str(hostile / "records")
    gate = ["check", folder, "--baseline", folder, "--fail", "clean_accuracy:-2pp"]
    main(["records", "show", folder])
    main(gate)
    captured = capsys.readouterr()
    require_clean(captured.out + captured.err, html_escaped=False)


def test_pages_in_markdown_stay_as_they_were_meant(hostile, capsys):
    from robustbench_kpca.report.card import card
    from robustbench_kpca.report.comment import comment
    from robustbench_kpca.report.compare import Rule, compare
    from robustbench_kpca.report.matching import load_board
    from robustbench_kpca.report.render import markdown

    (path,) = (hostile / "records").glob("*.record.json")
    record = load_record(path)
    require_clean(comment(compare([record], [record], [Rule.parse("clean_accuracy:-2pp")])))
    body = card([record]).split("---\n", 2)[2]
    require_clean(body)
    data = record.spec.data
    (hostile / "board.toml").write_text(
        f'title = "T"\nintro = ""\ndata = "{data.name}"\nsplit = "{data.split}"\nlimit = {data.n}\nseed = 0\n'
        f'rank_by = "Clean"\nmodels = [{json.dumps(NASTY)}]\n'
        '[[column]]\ntitle = "Clean"\nprotocol = "clean"\nmetric = "clean_accuracy"\n'
    )
    page = markdown(load_board(str(hostile)))
    assert "not run" not in page
    assert "## Flags" in page
    require_clean(page)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["eval", "--model", "a b", "-o", "runs"], "rbk eval --model 'a b' -o runs"),
        (["train", "recipe"], "rbk train recipe --resume"),
        (["train", "recipe", "--resume"], "rbk train recipe --resume"),
        (["train", "recipe", "--fresh"], "rbk train recipe --resume"),
        (["train", "recipe", "--no-resume"], "rbk train recipe --resume"),
        (["eval", "-m", "a", "--fresh"], "rbk eval -m a"),
        (["records", "show", "x"], "rbk records show x"),
    ],
)
def test_an_interruption_names_the_command_that_goes_on(arguments, command):
    assert _interruption.said(arguments).endswith(f": {command}")


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
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_every_signal_is_one_line_and_exit_code_three(name):
    heard = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # where tests run in the background
    heard += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-c", heard + RUN, "records", "show", "a b"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(getattr(signal, name))
    _, said = process.communicate(timeout=30)
    by = "" if name == "SIGINT" else f" by {name}"
    assert said.strip() == f"rbk: error: interrupted{by}; what was finished is kept; run again: rbk records show 'a b'"
    assert process.returncode == 3
    assert shlex.split(said.partition("again: ")[2]) == ["rbk", "records", "show", "a b"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_what_nohup_ignores_stays_ignored():
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + RUN.replace(
        "time.sleep(60)", "time.sleep(0.5); sys.exit(7)"
    )
    command = [sys.executable, "-c", ignoring, "records", "show", "a"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    time.sleep(0.1)
    assert "interrupted" not in process.communicate(timeout=30)[1]
    assert os.WIFEXITED(process.returncode << 8)
