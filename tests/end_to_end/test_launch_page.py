"""The scripts in examples/cluster are well formed, and their commands are those that `rbk` understands."""

import shlex
import subprocess
import sys
import time
from pathlib import Path

import kubernetes_validate
import pytest
import typer
import yaml

from robustbench_kpca.cli.main import app

FOLDER = Path(__file__).parents[2] / "examples" / "cluster"
SCRIPTS = [(FOLDER / name).read_text() for name in ("eval.sbatch", "train.sbatch")]
MANIFEST = (FOLDER / "job.yaml").read_text()
STAND_IN = """#!/bin/bash
printf '%s\\n' "${0##*/} $*" >> calls
if [[ ${0##*/} == rbk && $HANGS ]]; then trap 'echo stopped >> calls; exit 3' TERM; touch begun; while :; do sleep 0.05; done; fi
[[ ${0##*/} != scontrol || $1 != show ]] || printf '%s\\n' n1 n2
exit "${CODE:-0}"
"""  # noqa: E501


def understood(words):
    command = typer.main.get_command(app).commands[words[0]]
    return command.make_context(words[0], list(words[1:])).params


@pytest.fixture
def start(tmp_path):
    for name in ("rbk", "scontrol", "srun", "torchrun"):
        (tmp_path / name).write_text(STAND_IN)
        (tmp_path / name).chmod(0o755)

    def started(script, **more):
        script = script.replace("/opt/venv/bin", str(tmp_path))
        place = {"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_JOB_ID": "47", "SLURM_JOB_ID": "48"}
        return subprocess.Popen(["bash", "-c", script], cwd=tmp_path, env={**place, "SLURM_JOB_NODELIST": "n", **more})

    return started


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_well_formed(script):
    checker = Path(sys.executable).with_name("shellcheck")
    given = {"input": script, "text": True, "capture_output": True}
    assert subprocess.run(["bash", "-n"], **given).stderr == ""
    assert subprocess.run([checker, "-s", "bash", "-e", "SC2154,SC2317,SC2329", "-"], **given).stdout == ""


def test_the_array_and_the_job_of_kubernetes_make_a_part_each(start, tmp_path):
    assert start(SCRIPTS[0], CODE="2").wait() == 2, "the code of the command"
    [call] = (tmp_path / "calls").read_text().splitlines()
    asked = understood(shlex.split(call)[1:])
    assert (asked["part"], asked["out"], asked["device"]) == ("3/16", Path("runs"), "cuda")
    assert "--array=1-16" in SCRIPTS[0]
    job = yaml.safe_load(MANIFEST)
    kubernetes_validate.validate(job, "1.31", strict=True)
    [box] = job["spec"]["template"]["spec"]["containers"]
    shown = subprocess.run(
        ["sh", "-c", box["args"][0].replace("exec rbk", "echo")], env={"JOB_COMPLETION_INDEX": "15"}, text=True,
        capture_output=True, check=True,
    ).stdout  # fmt: skip
    asked = understood(shlex.split(shown))
    assert asked["part"] == f"{job['spec']['completions']}/16" == "16/16"


@pytest.mark.parametrize(("signal", "again"), [("USR1", ["scontrol requeue 47_3"]), ("TERM", [])])
def test_before_the_time_is_over_the_command_is_stopped_and_goes_back_into_the_queue(signal, again, start, tmp_path):
    script = start(SCRIPTS[0], HANGS="yes")
    while not (tmp_path / "begun").exists():
        time.sleep(0.02)
    subprocess.run(["kill", f"-{signal}", str(script.pid)], check=True)
    script.wait()
    assert (tmp_path / "calls").read_text().splitlines()[1:] == ["stopped", *again]


def test_the_training_runs_by_torchrun(start, tmp_path):
    assert start(SCRIPTS[1]).wait() == 0
    _, call = (tmp_path / "calls").read_text().splitlines()
    words = shlex.split(call)
    assert words[0] == "srun"
    assert "--rdzv-endpoint=n1:20048" in words
    asked = understood(words[words.index("robustbench_kpca") + 1 :])
    assert (asked["recipe"], asked["resume"]) == ("rpc_symvit_tiny", True)
