"""Scripts for Slurm: what they call is seen by running them with stand-ins for Slurm, Ray and rbk."""

import signal
import stat
import time

import pytest
from launch_fakes import EVAL, HOSTILE, Fakes, lint, printed

from robustbench_kpca.cli.main import main

ENGINES = {
    "processes": (["--gpus-per-node", "2"], EVAL),
    "ray": (["--nodes", "3", "--gpus-per-node", "8", "--cpus-per-node", "32", "--memory-per-node", "64G"], EVAL),
    "torchrun": (["--nodes", "2", "--gpus-per-node", "4"], ["train", "symvit_digits", "-o", "runs"]),
}


@pytest.fixture
def fakes(tmp_path):
    return Fakes(tmp_path)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_script_passes_shellcheck_whatever_is_in_it(engine, tmp_path, capsys):
    options, command = ENGINES[engine]
    plain = printed(capsys, "slurm", *options, "--", *command)
    assert "partition" not in plain
    lint(plain, tmp_path / "plain")
    extras = ["--sbatch", "partition=gpu", "--sbatch", "exclusive", "--module", "cuda/12.4", "--venv", "/my venv/$x"]
    extras += [
        word for number, text in enumerate(HOSTILE) if "\n" not in text for word in ("--env", f"K{number}={text}")
    ]
    hostile = [word for text in HOSTILE for word in ("--log", text)]
    lint(printed(capsys, "slurm", *options, *extras, "--", *command, *hostile), tmp_path / "hostile")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_word_arrives_as_it_was_given(engine, fakes, tmp_path, capsys):
    options, command = ENGINES[engine]
    words = [*command, *(word for text in HOSTILE for word in ("--log", text))]
    env = ["--env", "SECRET=$(touch pwned) 'x'"]
    assert fakes.run(printed(capsys, "slurm", *options, *env, "--module", "cuda", "--", *words)) == 0, fakes.said
    if engine == "torchrun":
        (called,) = fakes.of("torchrun")
        place = called.index("-m")
        assert called[place:] == ["-m", "robustbench_kpca", *words, "--resume"]
        assert set(called[:place]) == {
            "--nnodes=2", "--nproc-per-node=4", "--rdzv-id=4711-0", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:24711",
        }  # fmt: skip
    else:
        added = {"processes": ["--processes", "2"], "ray": ["--processes", "24", "--executor", "ray:10.0.0.7:24711"]}[
            engine
        ]
        assert fakes.of("rbk") == [words + added]
    assert fakes.of("module") == [["load", "cuda"]]
    assert not (tmp_path / "pwned").exists()
    assert not fakes.requeued()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_code_of_work_that_ends_at_once_is_passed_on(engine, fakes, capsys):
    """Bash may have taken note of its end before the script waits for it."""
    options, command = ENGINES[engine]
    script = printed(capsys, "slurm", *options, "--", *command)
    assert script.count("work=$!\n") == 1
    assert fakes.run(script.replace("work=$!\n", "work=$!\nsleep 0.2\n"), CODE="2") == 2, fakes.said


def test_ray_starts_on_the_first_node_and_then_on_the_others(fakes, capsys):
    options, command = ENGINES["ray"]
    assert (
        fakes.run(printed(capsys, "slurm", *options, "--", *command), CODE="3", AFTER="joined") == 3
    )  # the code of rbk is passed on
    names = [call[0] for call in fakes.calls()]
    head, others = (call for call in fakes.of("srun") if "ray" in call)
    ours = ["--num-cpus=32", "--num-gpus=8", "--disable-usage-stats", "--block"]
    assert {"--nodes=1", "--ntasks=1", "--nodelist=n1", "--overlap", "--cpus-per-task=32"} <= set(head)
    assert head[head.index("ray") :] == [
        "ray", "start", "--head", "--node-ip-address=10.0.0.7", "--port=24711", "--include-dashboard=false", *ours,
    ]  # fmt: skip
    assert {"--nodes=2", "--ntasks=2", "--exclude=n1", "--no-kill", "--cpus-per-task=32"} <= set(others)
    assert others[others.index("ray") :] == ["ray", "start", "--address=10.0.0.7:24711", *ours]
    assert fakes.of("ray").count(["status", "--address=10.0.0.7:24711"]) >= 1
    assert names.index("ray") < names.index("rbk")
    assert not fakes.requeued()  # it failed by itself


def test_where_ray_does_not_start_nothing_is_evaluated(fakes, capsys):
    options, command = ENGINES["ray"]
    assert fakes.run(printed(capsys, "slurm", *options, "--", *command), DEAD="1") == 3
    assert "Ray did not start on n1" in fakes.said
    assert not fakes.of("rbk")


@pytest.mark.parametrize("engine", ["processes", "ray"])
@pytest.mark.parametrize(
    ("sent", "restarts", "requeued"),
    [(signal.SIGUSR1, "0", True), (signal.SIGUSR1, "100", False), (signal.SIGTERM, "0", False)],
    ids=["time is over", "too often", "cancelled or pre-empted"],
)
def test_a_signal_stops_rbk_and_the_end_of_the_time_requeues(engine, sent, restarts, requeued, fakes, tmp_path, capsys):
    options, command = ENGINES[engine]
    process = fakes.start(printed(capsys, "slurm", *options, "--", *command), HANGS="1", SLURM_RESTART_COUNT=restarts)
    until = time.monotonic() + 20
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(sent)
    assert process.wait(20) != 0
    process.stderr.close()
    assert (fakes.requeued() == [["requeue", "4711"]]) is requeued


@pytest.mark.parametrize(("engine", "before"), [("processes", "work=$!\n"), ("ray", "work=$!\n"), ("ray", "for ((")])
def test_a_signal_that_comes_before_the_work_is_known_is_not_lost(engine, before, fakes, capsys):
    options, command = ENGINES[engine]
    script = printed(capsys, "slurm", *options, "--", *command)
    assert script.count(before) == 1
    assert fakes.run(script.replace(before, f"kill -USR1 $$\n{before}"), HANGS="1") != 0
    assert fakes.requeued() == [["requeue", "4711"]]


def test_the_directives_are_those_asked_for(capsys):
    options, command = ENGINES["ray"]
    script = printed(
        capsys, "slurm", *options, "--time", "2-12:00:00", "--name", "my-job", "--sbatch", "account=a_b", "--", *command
    )
    found = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    assert set(found) == {
        "job-name=my-job", "nodes=3", "ntasks-per-node=1", "cpus-per-task=32", "gpus-per-node=8", "mem=64G",
        "time=2-12:00:00", "output=%x-%j.log", "open-mode=append", "requeue", "signal=B:USR1@90", "no-kill",
        "account=a_b",
    }  # fmt: skip
    assert script.index("account=a_b") < script.index("\nset -euo pipefail")  # below it sbatch reads none
    assert "gpus-per-node" not in printed(capsys, "slurm", "--gpus-per-node", "0", "--", *command)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["slurm"], "no command after --"),
        (["slurm", "--", "board", "render"], "'board'"),
        (["slurm", "--", "eval", "-m", "vit_digits"], "protocol"),
        (["slurm", "--", "eval", "-m", "vit_digits", "-p", "clean", "--no-such"], "--no-such"),
        (["slurm", "--", *EVAL, "--processes", "4"], "--processes"),
        (["slurm", "--", *EVAL, "--processes=4"], "--processes=4"),
        (["slurm", "--", *EVAL, "--name", "\x1b[2J"], "in the command"),
        (["slurm", "--", "eval", "-m", "vit_digits", "-p", "autoattack-linf-4_255"], "autoattack-linf-4_255"),
        (["slurm", "--", *EVAL, "--set", "epz=1/255"], "epz"),
        (["slurm", "--", "train", "vit_digit"], "vit_digit"),
        (["slurm", "--", "train", "symvit_digits", "--fresh"], "--fresh in the command"),
        (["slurm", "--", *EVAL, "--fresh"], "--fresh in the command"),
        (["slurm", "--", "train", "symvit_digits", "--no-resume"], "--no-resume in the command"),
        (["slurm", "--time", "soon", "--", *EVAL], "--time soon"),
        (["slurm", "--time", "0:00:00", "--", *EVAL], "--time 0:00:00"),
        (["slurm", "--time", "1:00\n#SBATCH", "--", *EVAL], "--time"),
        (["slurm", "--nodes", "0", "--", *EVAL], "--nodes"),
        (["slurm", "--gpus-per-node", "-1", "--", *EVAL], "--gpus-per-node"),
        (["slurm", "--name", "a b", "--", *EVAL], "--name 'a b'"),
        (["slurm", "--memory-per-node", "lots", "--", *EVAL], "lots"),
        (["slurm", "--sbatch", "partition=a b", "--", *EVAL], "partition=a b"),
        (["slurm", "--sbatch", "nodes=9", "--", *EVAL], "nodes=9"),
        (["slurm", "--module", "a;b", "--", *EVAL], "a;b"),
        (["slurm", "--venv", "venv", "--", *EVAL], "--venv 'venv'"),
        (["slurm", "--env", "A B=1", "--", *EVAL], "A B=1"),
        (["slurm", "--env", "A=1", "--env", "A=2", "--", *EVAL], "A=2"),
        (["slurm", "--nodes", "2", "--engine", "processes", "--", *EVAL], "--engine processes"),
        (["slurm", "--nodes", "40", "--gpus-per-node", "0", "--cpus-per-node", "64", "--", *EVAL], "2,560 processes"),
        (["slurm", "--gpus-per-node", "0", "--cpus-per-node", "2000", "--", *EVAL], "at most 1,024"),
        (["kubernetes", "--image", "i", "--claim", "c:/r", "--nodes", "2000", "--", *EVAL], "2,000 processes"),
        (["slurm", "--engine", "ray", "--", "train", "symvit_digits"], "--engine ray"),
        (["kubernetes", "--image", "i", "--", *EVAL], "--claim"),
        (["kubernetes", "--image", "i j", "--claim", "c:/r", "--", *EVAL], "i j"),
        (["kubernetes", "--image", "i", "--claim", "c:r", "--", *EVAL], "c:r"),
        (["kubernetes", "--image", "i", "--claim", "C:/r", "--", *EVAL], "'C'"),
        (["kubernetes", "--image", "i", "--claim", "c:/a/../etc", "--", *EVAL], "a/../etc"),
        (["kubernetes", "--image", "i", "--claim", "c:/r", "--claim", "d:/r/", "--", *EVAL], "one folder"),
        (["kubernetes", "--image", "i", "--claim", "c:/etc/rbk", "--", *EVAL], "/etc/rbk"),
        (["kubernetes", "--image", "i", "--claim", "c:/r", "--name", "My_job", "--", *EVAL], "My_job"),
        (["kubernetes", "--image", "i", "--claim", "c:/r", "--name", "x" * 48, "--", *EVAL], "47"),
        (["kubernetes", "--image", "i", "--claim", "c:/r", "--namespace", "-a", "--", *EVAL], "-a"),
        (["kubernetes", "--image", "i", "--claim", "c:/r", "--memory-per-node", "64GB", "--", *EVAL], "64GB"),
        (["kubernetes", "--image", "i", "--claim", "c:/r", "--memory-per-node", "64K", "--", *EVAL], "64K"),
        (["kubernetes", "--image", "i", "--claim", "c:/r", "--nodes", "2", "--", "train", "symvit_digits"], "torchrun"),
    ],
)  # fmt: skip
def test_what_cannot_be_launched_is_refused_in_one_line(arguments, named, tmp_path, capsys):
    assert main(["launch", arguments[0], "-o", str(tmp_path / "job"), *arguments[1:]]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert named in found.err
    assert len(found.err.strip().splitlines()) == 1
    assert not (tmp_path / "job").exists()


def test_a_file_is_written_only_where_asked_for(tmp_path, capsys):
    shown = printed(capsys, "slurm", "--", *EVAL)
    assert printed(capsys, "slurm", "-o", str(tmp_path / "job"), "--", *EVAL) == ""
    assert (tmp_path / "job").read_text() == shown
    assert printed(capsys, "slurm", "-o", str(tmp_path / "job"), "--print", "--", *EVAL) == shown
    assert stat.S_ISREG((tmp_path / "job").stat().st_mode)
