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


def test_the_plan_takes_at_most_three_quarters_of_an_hour():
    run = subprocess.run(["bash", str(SCRIPT), "--plan"], capture_output=True, text=True, check=True)
    parts = run.stdout.splitlines()
    assert [line.split()[0] for line in parts][:2] == ["tests", "parity"]
    assert {"spsa", "l2", "fab", "draws", "segmentation", "language", "training", "processes", "compiled", "tf32",
            "memory"} < {line.split()[0] for line in parts}  # fmt: skip
    assert sum(int(line.partition("(")[2].split()[0]) for line in parts) <= 45 * 60
    for line in parts:
        for word in line.split():
            if word.endswith(".py"):
                assert (SCRIPT.parents[1] / word).is_file(), word


def alone(tmp_path, python):
    """Return a copy of the checkout that holds the script alone, with a Python."""
    (tmp_path / "benchmarks").mkdir()
    script, program = tmp_path / "benchmarks" / "gpu.sh", tmp_path / "python"
    script.write_bytes(SCRIPT.read_bytes())
    program.write_text(python)
    program.chmod(0o755)
    return script, os.environ | {"PYTHON": str(program)}


def test_a_run_of_some_parts_goes_on(tmp_path):
    """A Python fails at SPSA until it is mended; what was ok is not run again."""
    script, own = alone(tmp_path, "#!/usr/bin/env bash\n[ -e mended ] || case $* in *spsa*) exit 7 ;; esac\n")

    def run(*options):
        done = subprocess.run(
            ["bash", str(script), "--out", "mine", *options], env=own, capture_output=True, text=True, check=False
        )
        summary = (tmp_path / "mine" / "summary.txt").read_text().splitlines()
        return done.returncode, done.stdout, {line.split()[0]: line.split()[1] for line in summary}

    assert run("--only", "spsa,l2", "--only", "fab")[::2] == (1, {"spsa": "failed", "l2": "ok", "fab": "ok"})
    (tmp_path / "mended").touch()
    code, said, summary = run("--only", "spsa,l2", "--resume")
    assert (code, summary) == (0, {"l2": "ok", "fab": "ok", "spsa": "ok"})
    assert "l2: ok before" in said
    assert "spsa: ok before" not in said
    assert len(run("--resume")[2]) > 15


def test_an_unknown_part_is_refused_before_anything_runs():
    run = subprocess.run(
        ["bash", str(SCRIPT), "--only", "spsa,nothing", "--plan"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 2
    assert "unknown part nothing" in run.stderr


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
    script, own = alone(tmp_path, PYTHON)
    words = ["bash", str(script), "trainings", *options]
    done = subprocess.run(words, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.safetensors")}
    assert written
    assert all(path.startswith(f"{folder}/trainings/") for path in written)
