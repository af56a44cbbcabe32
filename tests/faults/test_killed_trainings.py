"""Trainings of a pack at once: what is finished is neither lost nor made again, whoever is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from board_pages import CLEAN, pack_text, table_text
from safetensors.torch import load_file

from robustbench_kpca._core.lock import holder_in, is_held
from robustbench_kpca._core.progress import read_spent
from robustbench_kpca.cli.main import main
from robustbench_kpca.models.bundle import read_header

pytestmark = pytest.mark.slow
EPOCHS = 6
PACK = pack_text(
    [f'{name} = {{ title = "{name}", recipe = "{family}_digits", seeds = [0], set = {{ epochs = 6, threads = 1 }} }}'
     for name, family in (("vit", "vit"), ("sym", "symvit"))],
    [f'{name} = {{ title = "{name}", recipe = "{family}_tiny", seeds = [0], data = "imagenet" }}'
     for name, family in (("vit", "vit"), ("sym", "symvit"))], limit=8,
)  # fmt: skip
TABLE = table_text(["vit", "sym"], CLEAN)
NAMES = [f"{family}_digits-epochs6-threads1-s0" for family in ("vit", "symvit")]
PLAIN = [sys.executable, "-m", "robustbench_kpca"]
LAUNCH = [
    sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
    "--rdzv-endpoint", "localhost:0", "-m", "robustbench_kpca",
]  # fmt: skip


@pytest.fixture
def pack(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "pack.toml").write_text(PACK)
    (folder / "table-1.toml").write_text(TABLE)
    return folder


def words(pack, out):
    return ["reproduce", str(pack), "-o", str(out), "--audit", "none", "-q", "--device", "cpu"]


def start(command, **more):
    return subprocess.Popen(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"} | more, stderr=subprocess.PIPE, text=True
    )


def weights(out, name):
    return out / "trainings" / name / f"{name}.safetensors"


def epochs(out, name):
    """Return how many epochs were finished, those that were lost and made again included."""
    spent = read_spent(weights(out, name))
    return 0 if spent is None else spent.epochs


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def holder(out, name):
    """Return the process that trains a network."""
    return int(holder_in(weights(out, name).with_name(f".{name}.lock")).split()[1])


def require_each_epoch_once(out):
    assert [epochs(out, name) for name in NAMES] == [EPOCHS, EPOCHS]
    assert not list(out.rglob("*.resume.pt"))


def test_networks_are_trained_at_once_whoever_is_killed(pack, tmp_path):
    """A process is killed, then the command is ended; the networks are those of one process after the other."""
    plain, out = tmp_path / "plain", tmp_path / "out"
    assert main(words(pack, plain)) == 0
    command = [*PLAIN, *words(pack, out), "--processes", "2"]
    process = start(command)
    wait_for(lambda: all(1 <= epochs(out, name) < EPOCHS - 1 for name in NAMES), process)
    os.kill(holder(out, NAMES[0]), signal.SIGKILL)
    _, said = process.communicate()
    assert (process.returncode, len(said.splitlines())) == (3, 1), said
    assert f"the process of training '{NAMES[0]}' was killed by SIGKILL" in said
    assert weights(out, NAMES[1]).is_file(), "the other network was trained to its end"
    assert len(list((out / "records").glob("*.record.json"))) == 1, "and evaluated"
    before = weights(out, NAMES[1]).stat().st_mtime_ns, epochs(out, NAMES[0])
    process = start(command)
    wait_for(lambda: before[1] < epochs(out, NAMES[0]) < EPOCHS, process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate()
    assert (process.returncode, len(said.splitlines())) == (3, 1), said
    assert "interrupted by SIGTERM" in said
    assert not is_held(weights(out, NAMES[0]).with_name(f".{NAMES[0]}.lock"))
    process = start(command)
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert weights(out, NAMES[1]).stat().st_mtime_ns == before[0]
    require_each_epoch_once(out)
    for name in NAMES:
        one, two = load_file(weights(plain, name)), load_file(weights(out, name))
        assert all(torch.equal(one[key], two[key]) for key in one)


def test_each_network_is_trained_on_all_processes_of_a_launch(pack, tmp_path):
    """The first process is killed in the middle; the same command goes on, and evaluates in the first process alone."""
    out = tmp_path / "out"
    process = start([*LAUNCH, *words(pack, out)])
    wait_for(lambda: 2 <= epochs(out, NAMES[0]) < EPOCHS, process)
    os.kill(holder(out, NAMES[0]), signal.SIGKILL)
    process.communicate()
    assert process.returncode
    process = start([*LAUNCH, *words(pack, out)])
    _, said = process.communicate()
    assert process.returncode == 0, said
    require_each_epoch_once(out)
    for name in NAMES:
        assert [each["processes"] for each in json.loads(read_header(weights(out, name))["machines"])] == [2]
    assert len(list((out / "records").glob("*.record.json"))) == 2


SBATCH = """#!/bin/bash
mapfile -t tasks < <(sed -n 's/^#SBATCH --array=//p' "$1" | tr - ' ' | xargs seq)
for task in "${tasks[@]}"; do SLURM_ARRAY_JOB_ID=1 SLURM_ARRAY_TASK_ID=$task bash "$1" & done
wait
"""
RBK = """#!/bin/bash
[[ $SLURM_ARRAY_TASK_ID != 2 ]] || echo $$ > second
exec {python} -m robustbench_kpca "$@"
"""
REQUEUE = """#!/bin/bash
echo "$*" >> calls
bash job.sbatch
"""


def test_an_array_of_slurm_trains_a_network_in_each_job(pack, tmp_path):
    """The second of two jobs is told that its time is over, and starts again; stand-ins for Slurm, real trainings."""
    out, script = tmp_path / "out", tmp_path / "job.sbatch"
    text = (Path(__file__).parents[2] / "examples" / "cluster" / "eval.sbatch").read_text()
    begin, end = text.index("rbk eval"), text.index(" &\n")
    text = text[:begin] + f"rbk {' '.join(words(pack, out))}" + text[end:]
    script.write_text(text.replace("--array=1-16", "--array=1-2").replace("/opt/venv/bin", str(tmp_path)))
    for name, content in (("sbatch", SBATCH), ("rbk", RBK.format(python=sys.executable)), ("scontrol", REQUEUE)):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
    process = subprocess.Popen(["./sbatch", "job.sbatch"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: all(1 <= epochs(out, name) < EPOCHS for name in NAMES), process)
    job = int((tmp_path / "second").read_text())
    assert job in {holder(out, name) for name in NAMES}, "each job trains one"
    os.kill(int(Path(f"/proc/{job}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGUSR1)
    process.communicate()
    assert (tmp_path / "calls").read_text() == "requeue 1_2\n"
    assert main(words(pack, out)) == 0, "what is left, and the pages"
    require_each_epoch_once(out)
    assert len(list((out / "records").glob("*.record.json"))) == 2
