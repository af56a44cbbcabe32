import os
import subprocess
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PYTHON = """#!/usr/bin/env bash
case $1 in
  -) exit 0 ;;  # is there such a device?
esac
while [ "$1" != "-o" ]; do shift; done
touch "$2/$(basename "$2").safetensors"
"""


@pytest.mark.parametrize(
    ("options", "folder"),
    [([], "runs/cifar10"), (["--quick"], "runs/cifar10-quick"), (["--quick", "--out", "mine"], "mine")],
)
def test_a_quick_run_keeps_away_from_the_real_trainings(options, folder, tmp_path):
    """With a Python that trains nothing, in a copy of the checkout that holds the script alone."""
    (tmp_path / "benchmarks").mkdir()
    script = tmp_path / "benchmarks" / "cifar_gpu.sh"
    script.write_bytes((BENCHMARKS / "cifar_gpu.sh").read_bytes())
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", str(script), *options], env=os.environ | {"PYTHON": str(python)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.safetensors")}
    assert written
    assert all(path.startswith(f"{folder}/trainings/") for path in written)
