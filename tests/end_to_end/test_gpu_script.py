import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.sh"


def test_the_plan_takes_at_most_three_quarters_of_an_hour():
    run = subprocess.run(["bash", str(SCRIPT), "--plan"], capture_output=True, text=True, check=True)
    parts = run.stdout.splitlines()
    assert [line.split()[0] for line in parts][:2] == ["tests", "parity"]
    assert sum(int(line.partition("(")[2].split()[0]) for line in parts) <= 45 * 60


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
    assert ("l2: ok before" in said, "spsa: ok before" in said) == (True, False)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--only", "spsa,nothing", "--plan"], "nothing"), (["--fast"], "--fast"), (["--jobs", "2"], "--jobs"),
        (["pack", "answer", "--fast"], "--fast"),
    ],
)  # fmt: skip
def test_an_unknown_part_or_option_is_refused(options, named):
    run = subprocess.run(["bash", str(SCRIPT), *options], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert named in run.stderr


def test_a_pack_is_run_so_many_times_at_once_and_once_more(tmp_path):
    """With a Python that writes its words down, in a copy of the checkout that holds the script alone."""
    script, own = alone(tmp_path, '#!/usr/bin/env bash\necho "$@" >> words\n')
    options = ["--device", "cpu", "--jobs", "3", "--minutes", "5", "--out", "mine", "--item", "a", "--item", "b"]
    subprocess.run(["bash", str(script), "pack", "answer", *options], env=own, capture_output=True, check=True)
    asked = "--together --audit none --device cpu --budget 5min -q -o mine --item a --item b"
    assert (tmp_path / "words").read_text().splitlines() == [f"-m robustbench_kpca reproduce answer {asked}"] * 4
