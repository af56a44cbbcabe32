"""What everyday commands cost: process CPU seconds, each in a process of its own; medians.

    python benchmarks/start.py [--repeats 3] [--package CHECKOUT] [--only list eval]

`first batch` is `rbk eval` of a bundled model up to its first forward pass, where it is stopped. With --package another
checkout of the project is measured, such as an older one.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _shared import header
from tabulate import tabulate

EVAL = "eval -m {model} -p clean --limit 64 -q --fresh -o {out}"
COMMANDS = [
    "--help", "eval --help",
    *(f"list {what}" for what in (
        "models", "attacks", "corruptions", "data", "protocols", "metrics", "boards", "packs", "recipes"
    )),
    "doctor", EVAL.format(model="vit_digits", out="{out}"),
]  # fmt: skip
FIRST = ["vit_digits", "rpc_symvit_digits", "fan_digits", "symvit_shapes --data shapes"]
STOPPED = """
import os, sys
from robustbench_kpca.cli.main import main
from robustbench_kpca.inference import runner
runner.Runner.logits = lambda *given, **named: os._exit(0)
main(sys.argv[1:])
"""
"""Imports what `rbk eval` imports first anyway, torch among it."""


def cpu_seconds(program: list[str], package: Path) -> float:
    """Run a program to its end; return the CPU seconds of its process."""
    before = os.times()
    subprocess.run(
        [sys.executable, *program], check=True, stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(package)}, cwd=package,
    )  # fmt: skip
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--package", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--only", nargs="+", default=[""])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as out:
        programs = {"python -c 'import torch'": ["-c", "import torch"]}
        for line in COMMANDS:
            programs[f"rbk {line.format(out='runs')}"] = ["-m", "robustbench_kpca", *line.format(out=out).split()]
        for model in FIRST:
            given = EVAL.format(model=model, out=out).split()
            programs[f"first batch of rbk eval -m {model}"] = ["-c", STOPPED, *given]
        chosen = {name: program for name, program in programs.items() if any(part in name for part in asked.only)}
        times = [
            (name, statistics.median(cpu_seconds(program, asked.package) for _ in range(asked.repeats)))
            for name, program in chosen.items()
        ]
    print(header(("torch", "timm", "numpy", "scipy", "typer", "pydantic")))
    print(tabulate(times, ("command", "CPU s"), floatfmt=".2f"))
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
