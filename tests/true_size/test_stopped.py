"""An evaluation of ImageNet-C's 3.75 million files, killed and gone on with: its numbers are those of the files."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import coded
import pytest
import trees
from form import LINES, WHOLE

from robustbench_kpca import load_data
from robustbench_kpca.data.imagenet_classes import imagenet_wnids
from robustbench_kpca.protocols.corruption_names import COMMON
from robustbench_kpca.records.record import SUFFIX, load_record
from robustbench_kpca.records.unfinished import unfinished

FILES = 3_750_000


def evaluated(words, out, until=None):
    """Run a command; kill it when so many rows are done and saved. Add a line to the table; return the exit code."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "robustbench_kpca", *words, "-o", str(out)])
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        time.sleep(0.2)
        states = [one.state for one in unfinished(out) if one.state] if out.is_dir() else []
        done = sum(state.done for state in states)
        if until is not None and done >= until:
            process.send_signal(signal.SIGKILL)
            until = None
    process.returncode = os.waitstatus_to_exitcode(ended[1])
    seconds, used = time.perf_counter() - started, ended[2]
    spent = f"{seconds:.1f} | {used.ru_utime + used.ru_stime:.1f} | {used.ru_maxrss / 1024:,.0f}"
    LINES.append(f"| imagenet-c: evaluated, exit {process.returncode} | {FILES:,} | {spent} |")
    return process.returncode


@pytest.mark.skipif(not WHOLE, reason="a quarter of an hour")
def test_a_killed_evaluation_of_all_files_goes_on(root, tmp_path):
    numbers, out, data = trees.renumber(root), tmp_path / "out", root / "imagenet-c"
    words = ["eval", "-m", f"{Path(coded.__file__)}:Numbered", "-p", "imagenet-c", "--set", "reference=none"]
    words += ["--data", f"imagenet-c:{data}", "--audit", "none", "--device", "cpu", "-q"]
    assert evaluated(words, out, until=FILES // 3) == -signal.SIGKILL
    (left,) = unfinished(out)
    saved = sum(path.stat().st_size for path in left.folder.rglob("*")) / 1e6
    LINES.append(f"| what was saved of it, in MB | {left.state.done:,} | | | {saved:.1f} |")
    assert evaluated(words, out) == 0
    (path,) = out.glob(f"*{SUFFIX}")
    files, wnids = load_data(f"imagenet-c:{data}", view=coded.Numbered.view).files, imagenet_wnids()
    right = sum(
        wnids[numbers[os.stat(f"{data}/{name}/{severity}/{file}").st_ino]] == file.partition("/")[0]  # noqa: PTH116
        for name in COMMON
        for severity in range(1, 6)
        for file in files
    )
    assert load_record(path).metrics["corruption_accuracy"].value == pytest.approx(right / FILES, rel=1e-12)
