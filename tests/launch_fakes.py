"""Stand-ins for Slurm, Ray and `rbk` on PATH that write down how they were called; and checks of a shell script."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from robustbench_kpca.cli.main import main

HOSTILE = [
    "my model", "it's", '"', "$(touch pwned)", "`touch pwned`", "a\nb", "; touch pwned #", "--x=$HOME", "\\", "*", "é",
]  # fmt: skip
EVAL = ["eval", "-m", "vit_digits", "-p", "clean", "-o", "runs"]
FAKE = """#!/bin/bash
printf '%s\\0' "${0##*/}" "$@" $'\\n' > "$CALLS.$$"
cat "$CALLS.$$" >> "$CALLS"  # in one write: bash writes line by line, and calls at the same moment would mix
"""
BODIES = {
    "scontrol": '[[ $1 != show ]] || printf "%s\\n" n1 n2 n3',
    "srun": """
while [[ $1 == --* ]]; do shift; done
if [[ $1 == hostname ]]; then echo "10.0.0.7 fe80::1"; else exec "$@"; fi
""",
    "ray": """
case "$1 $2" in
  "status "*) [[ -e up ]] ;;
  "start --head") [[ $DEAD ]] && exit 1; touch up; exec sleep 30 ;;
  start*) touch joined; exec sleep 30 ;;
esac
""",
    "rbk": """
while [[ $AFTER && ! -e $AFTER ]]; do sleep 0.02; done
if [[ $HANGS ]]; then trap "exit 3" TERM; touch begun; while :; do sleep 0.05; done; fi
exit "${CODE:-0}"
""",
    "torchrun": 'exit "${CODE:-0}"',
    "module": "exit 0",
}


class Fakes:
    """A folder in which scripts run with the stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "calls"
        programs = folder / "bin"
        programs.mkdir()
        for name, body in BODIES.items():
            (programs / name).write_text(f"{FAKE}{body}\n")
            (programs / name).chmod(0o755)
        self.environment = {
            "PATH": f"{programs}:/usr/bin:/bin", "CALLS": str(self.log), "SLURM_JOB_ID": "4711",
            "SLURM_JOB_NODELIST": "n[1-3]", "RBK_LAUNCH_PAUSE": "0.01",
        }  # fmt: skip

    def start(self, script, **more):
        path = self.folder / "job.sbatch"
        path.write_text(script)
        environment = self.environment | more
        return subprocess.Popen(
            ["/bin/bash", path], env=environment, cwd=self.folder, stderr=subprocess.PIPE, text=True
        )

    def run(self, script, **more):
        process = self.start(script, **more)
        self.said = process.communicate(timeout=20)[1]
        return process.returncode

    def calls(self):
        found = self.log.read_text().split("\n\0")[:-1] if self.log.exists() else []
        return [call.split("\0")[:-1] for call in found]

    def of(self, name):
        return [call[1:] for call in self.calls() if call[0] == name]

    def requeued(self):
        return [call for call in self.of("scontrol") if call[0] == "requeue"]


def printed(capsys, *arguments):
    """What `rbk launch` prints."""
    assert main(["launch", *arguments]) == 0
    return capsys.readouterr().out


def lint(script, path):
    """Refuse what shellcheck or bash itself finds wrong in a script."""
    path.write_text(script)
    checker = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for command in ([checker, path], ["bash", "-n", path]):
        found = subprocess.run(command, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr
