import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.sh"
PYTHON = """#!/usr/bin/env bash
case $1 in
  -) exit 0 ;;  # is there such a device?
esac
while [ "$1" != "-o" ]; do shift; done
touch "$2/$(basename "$2").safetensors"
"""


def test_the_plan_takes_less_than_half_an_hour():
    run = subprocess.run(["bash", str(SCRIPT), "--plan"], capture_output=True, text=True, check=True)
    parts = run.stdout.splitlines()
    assert [line.split()[0] for line in parts][:2] == ["tests", "parity"]
    assert sum(int(line.partition("(")[2].split()[0]) for line in parts) < 30 * 60
    for line in parts:
        for word in line.split():
            if word.endswith(".py"):
                assert (SCRIPT.parents[1] / word).is_file(), word


@pytest.mark.parametrize("options", [["--fast"], ["--jobs", "2"], ["trainings", "--fast"]])
def test_an_unknown_option_is_refused(options):
    run = subprocess.run(["bash", str(SCRIPT), *options], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert options[-1] in run.stderr or options[0] in run.stderr


@pytest.mark.parametrize(
    ("options", "folder"),
    [([], "runs/cifar10"), (["--quick"], "runs/cifar10-quick"), (["--quick", "--out", "mine"], "mine")],
)
def test_a_quick_training_keeps_away_from_the_real_ones(options, folder, tmp_path):
    """With a Python that trains nothing, in a copy of the checkout that holds the script alone."""
    (tmp_path / "benchmarks").mkdir()
    script = tmp_path / "benchmarks" / "gpu.sh"
    script.write_bytes(SCRIPT.read_bytes())
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", str(script), "trainings", *options], env=os.environ | {"PYTHON": str(python)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.safetensors")}
    assert written
    assert all(path.startswith(f"{folder}/trainings/") for path in written)
