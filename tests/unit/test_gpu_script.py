import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.sh"


def test_the_plan_takes_less_than_half_an_hour():
    run = subprocess.run(["bash", str(SCRIPT), "--plan"], capture_output=True, text=True, check=True)
    parts = run.stdout.splitlines()
    assert [line.split()[0] for line in parts][:2] == ["tests", "parity"]
    assert sum(int(line.partition("(")[2].split()[0]) for line in parts) < 30 * 60
    for line in parts:
        for word in line.split():
            if word.endswith(".py"):
                assert (SCRIPT.parents[1] / word).is_file(), word


def test_an_unknown_option_is_refused():
    run = subprocess.run(["bash", str(SCRIPT), "--fast"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "--fast" in run.stderr
