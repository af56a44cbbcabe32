"""`rbk --version`, help, completion by the shell, and a bare `rbk list`."""

import os
import shlex
import subprocess
import sys
from importlib import metadata
from itertools import pairwise
from typing import Any

import pytest
import typer

from robustbench_kpca.cli._examples import EXAMPLES
from robustbench_kpca.cli.listing import Shelf
from robustbench_kpca.cli.main import app, main
from robustbench_kpca.protocols.loading import load_scenario

NO_DETECTION = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # the name of the shell is given instead


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"robustbench-kpca {metadata.version('robustbench-kpca')}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [("rbk rec", ["records"]), ("rbk records re", ["rerun", "recheck"]), ("rbk eval --aud", ["--audit"])],
)
def test_bash_completes(words, expected):
    """As bash asks: the words so far in the environment, the answers one a line."""
    asked = {"_RBK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    code = "import sys; sys.argv = ['rbk']; from robustbench_kpca.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == expected
    assert done.stderr == ""


def test_a_script_for_the_shell_is_printed():
    done = subprocess.run(
        [sys.executable, "-m", "robustbench_kpca", "--show-completion", "bash"],
        env=os.environ | NO_DETECTION,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "complete" in done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_the_help_can_be_typed(name):
    """Every option of an example is one of its command's; a command's help begins with them."""
    group: Any = typer.main.get_command(app)
    for part in name.split():
        group = group.commands[part]
    for example in EXAMPLES[name]:
        words = shlex.split(example)[1 + len(name.split()) :]
        group.make_parser(group.context_class(group)).parse_args(words)
        protocols = [word for flag, word in pairwise(words) if flag == "-p"] if name != "sweep" else []
        assert all(load_scenario(protocol) for protocol in protocols)
        assert f"rbk {name}" in example
    assert group.help.index(EXAMPLES[name][0]) < group.help.index(group.short_help)


def test_a_closed_pipe_is_no_fault_of_a_model(monkeypatch, capsys):
    def closed(*words, **options):  # as rich does where it prints
        exec("raise SystemExit(1)", {"__name__": "rich.console"})

    monkeypatch.setattr("robustbench_kpca.cli.main.app", closed)
    with pytest.raises(SystemExit):
        main(["list"])
    assert capsys.readouterr().err == ""


def test_a_bare_list_says_what_there_is(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(shelf.value in shown for shelf in Shelf)
