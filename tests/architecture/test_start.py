"""What a command imports: looked at in a process of its own, without timing anything."""

import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "torchvision", "timm", "pandas", "scipy", "sklearn", "matplotlib", "cv2", "accelerate")
PROGRAM = """
import sys
from robustbench_kpca.cli.main import main
code = main(sys.argv[1:])
print("IMPORTED", *sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""


def imported(*arguments, **environment):
    """The names of the modules that a command has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("IMPORTED")[2].split())


@pytest.mark.parametrize(
    "command",
    [
        ["--help"], ["eval", "--help"], *(["list", what] for what in (
            "models", "attacks", "corruptions", "data", "protocols", "metrics", "boards", "packs", "recipes"
        )),
    ],
    ids=" ".join,
)  # fmt: skip
def test_lists_and_help_import_nothing_heavy(command):
    assert not imported(*command) & set(HEAVY)


def test_the_doctor_imports_torch_only():
    assert imported("doctor") & set(HEAVY) == {"torch"}


@pytest.mark.parametrize("model", ["vit_digits", "rpc_fan_digits"])
def test_evaluating_a_bundled_model_imports_no_library_of_models(tmp_path, model):
    names = imported("eval", "-m", model, "-p", "clean", "--limit", "4", "-q", "-o", str(tmp_path))
    assert "torch" in names
    assert not names & {"timm", "torchvision", "sklearn", "scipy", "matplotlib"}
