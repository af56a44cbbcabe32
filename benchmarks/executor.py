"""What several processes cost and save: one plain loop, its shards in one process, in two.

    python benchmarks/executor.py [--samples 128] [--repeats 3]

One thread a process; medians of the repeats, the contenders take turns. The processes run already when the clock
starts; what their start costs is shown beside. CPU seconds are those of all processes. Planner and merger alone:
`benchmarks/scale.py`.
"""

import argparse
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import torch
from _shared import header
from tabulate import tabulate

from robustbench_kpca import load_data
from robustbench_kpca.evaluation.measure import measure_attack
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.processes import Processes
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.evaluation.trial import NamedModel
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.tasks.prepare import prepare


def loops(model: str, samples: int, repeats: int, batch_size: int, steps: int) -> None:
    data = load_data("digits", "train", limit=samples).in_order()
    request = ModelRequest(model)
    named = NamedModel(request.load(), request.label, request.source, request)
    label, scenario = prepare("pgd20-linf-8_255", {"steps": steps})
    assert isinstance(scenario, Attack)

    def once(backend: Processes | None) -> tuple[float, float]:
        with tempfile.TemporaryDirectory() as out:
            options = RunOptions(batch_size=batch_size, out=Path(out), device="cpu")
            spent, started = cpu_seconds(backend), time.perf_counter()
            measure_attack(named, data, label, scenario, options, audit=None, backend=backend)
            return time.perf_counter() - started, cpu_seconds(backend) - spent

    with ExitStack() as stack:
        backends: dict[str, Processes | None] = {"one plain loop": None}
        for count, name in ((1, "shards in one process"), (2, "shards in two processes")):
            backends[name] = stack.enter_context(Processes(count))
        first = {name: once(backend)[0] for name, backend in backends.items()}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in backends}
        for _ in range(repeats):
            for name, backend in backends.items():
                times[name].append(once(backend))
    rows = []
    for name, own in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*own, strict=True))
        rows.append((name, wall, cpu, first[name]))
    heading = f"{model}, {samples} digits, PGD-{steps}, batches of {batch_size}"
    print(tabulate(rows, (heading, "wall s", "CPU s", "wall s with the start"), floatfmt=".2f"))


def cpu_seconds(backend: Processes | None) -> float:
    """Return the CPU seconds of this process and of those of the backend that are alive."""
    ticks = 0
    for worker in [] if backend is None else backend.workers:
        ticks += sum(map(int, Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="symvit_digits_adv")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(header())
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    loops(asked.model, asked.samples, asked.repeats, asked.batch_size, asked.steps)


if __name__ == "__main__":
    main()
