"""`rbk --version`, help, completion by the shell, and a bare `rbk list`."""

import errno
import os
import shlex
import signal
import subprocess
import sys
from functools import partial
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli._evaluating import several
from robustbench_kpca.cli._examples import EXAMPLES
from robustbench_kpca.cli.listing import Shelf
from robustbench_kpca.cli.main import app, main
from robustbench_kpca.protocols.loading import load_scenario


def test_the_version_the_help_and_a_bare_list(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"robustbench-kpca {metadata.version('robustbench-kpca')}\n"
    assert len(typer.main.get_command(app).commands) <= 13
    assert main(["--help"]) == 0
    assert "..." not in capsys.readouterr().out.partition("Commands:")[2]
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(shelf in shown for shelf in get_args(Shelf))


@pytest.mark.parametrize(
    ("words", "expected"), [("rbk records s", ["show", "status"]), ("rbk eval --aud", ["--audit"])]
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


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_the_help_can_be_typed(name):
    """Every option of an example is one of its command's; a command's help begins with them."""
    group: Any = typer.main.get_command(app)
    for part in name.split():
        group = group.commands[part]
    for example in EXAMPLES[name]:
        words = shlex.split(example)[1 + len(name.split()) :]
        group.make_parser(group.context_class(group)).parse_args(words)
        protocols = [word for flag, word in pairwise(words) if flag == "-p"]
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


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="NOT TESTED: a full disk; this system has no /dev/full")
@pytest.mark.parametrize("words", [["list", "models"], ["list", "models", "--json"]])
def test_output_to_a_full_disk_is_one_line(words):
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "robustbench_kpca", *words],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr == "rbk: error: the output cannot be written (the disk is full); free disk space and run again\n"


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors are closed in another way")
def test_closed_streams_are_no_error():
    for stream in (1, 2):
        done = subprocess.run(
            [sys.executable, "-m", "robustbench_kpca", "--version"],
            preexec_fn=partial(os.close, stream), capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (PermissionError(errno.EACCES, "x", "a/b"), 2, "a/b cannot be used (no permission); check the path"),
        (OSError(errno.ENAMETOOLONG, "x", "a" * 5000), 2, "cannot be used (its name is too long)"),
        (OSError(errno.ENOSPC, "x", "a/b"), 3, "a/b cannot be written (the disk is full); free disk space"),
        (OSError(12345, "x", "a/b"), 2, "a/b cannot be used (error 12345 of the system)"),
    ],
)
def test_errors_of_the_system_are_one_line(error, code, said, monkeypatch, capsys):
    def fail(*words, **options):
        raise error

    monkeypatch.setattr("robustbench_kpca.cli.main.app", fail)
    assert main(["list"]) == code
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1
    assert len(line) < 700


SLOW = """
import sys, time
class Slow:
    def find_spec(self, name, path, target=None):
        if name == "robustbench_kpca.cli.main":
            print("importing", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
import signal; signal.signal(signal.SIGINT, signal.default_int_handler)  # where tests run in the background
from robustbench_kpca.__main__ import run
run()
"""


def test_no_error_is_longer_than_three_lines(monkeypatch, capsys):
    def fail(*_, **__):
        raise BadInputError("met " * 1000, expected="an option\n" * 1000, fix="do it " * 1000)

    monkeypatch.setattr("robustbench_kpca.cli.main.app", fail)
    assert main(["list"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("rbk: error: met met")
    assert said.endswith("do it\n")
    assert (said.count("\n"), len(said) < 750) == (1, True)


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_before_the_command_began_is_one_line(number):
    process = subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "importing\n"
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert said == "rbk: error: interrupted before the command began; nothing was done\n"
    assert process.returncode == 128 + number


def test_processes_begin_lightly_and_end_without_threads_of_models():
    # Until then Ctrl-C is a traceback, for up to 0.7 s where the disk is cold: most of that was `typing`.
    code = "import sys, robustbench_kpca.__main__; print({'typing', 're', 'contextlib'} & set(sys.modules))"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr == "rbk: a thread that a model began does not end; the process ends without it\n"


HELD = """
import sys, threading, time
from robustbench_kpca._core import early_exit
from robustbench_kpca.cli import main
def app(*words, **options):
    threading.Thread(target=time.sleep, args=(60,)).start()
    print("done")
early_exit.GRACE, main.app = 0.1, app
sys.argv = ["rbk", "list"]
main.run()
"""


SWALLOWED = """
import signal, os
signal.signal(signal.SIGINT, signal.default_int_handler)
from robustbench_kpca.cli import main
def app(*words, **options):
    try:
        exec("os.kill(os.getpid(), signal.SIGINT)\\nfor _ in range(10**6): pass", globals())
    except KeyboardInterrupt:  # as modules in C do
        raise AttributeError("half imported") from None
main.app = app
main.run()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_an_interrupt_that_a_library_swallows_is_no_bug():
    """Python would end itself by the signal, too: it was raised inside a text that was executed."""
    done = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True, check=False)
    assert done.stderr.startswith("rbk: error: interrupted; what was finished is kept")
    assert done.stderr.count("\n") == 1
    assert done.returncode == 3


def test_names_with_commas_are_several_and_each_is_taken_once(tmp_path, monkeypatch):
    assert several(["b,a", "a", " c , b"]) == ["b", "a", "c"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my,model.py").touch()
    assert several(["my,model.py:build", "a.py:build,b"]) == ["my,model.py:build", "a.py:build", "b"]
    with pytest.raises(BadInputError, match="an empty name"):
        several(["a,"])
