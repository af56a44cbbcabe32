"""`rbk --version`, and completion by the shell."""

import os
import subprocess
import sys
from importlib import metadata

import pytest

from robustbench_kpca.cli.main import main

NO_DETECTION = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # the name of the shell is given instead


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"robustbench-kpca {metadata.version('robustbench-kpca')}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [("rbk rec", ["records"]), ("rbk records re", ["recheck", "rerun"]), ("rbk eval --aud", ["--audit"])],
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
