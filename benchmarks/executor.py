"""What several processes cost and save: one plain loop, its shards in one process, in two.

    python benchmarks/executor.py [--samples 128] [--steps 100] [--repeats 3] [--ray]

One thread a process; medians of the repeats, the contenders take turns. The processes run already when the clock
starts; what their start and a run of one step cost is shown beside. CPU seconds are those of all processes; those of
Ray are not counted. The last two columns: time beyond that of the plain loop, and how often faster than it. Two
processes need two free cores. More steps make longer shards. Planner and merger alone: `benchmarks/scale.py`.
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
from robustbench_kpca.evaluation.backend import Backend
from robustbench_kpca.evaluation.measure import measure_attack
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.processes import Processes
from robustbench_kpca.evaluation.ray_cluster import RayCluster
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.evaluation.shards import shard_size
from robustbench_kpca.evaluation.trial import NamedModel
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.tasks.prepare import prepare


def loops(model: str, samples: int, repeats: int, batch_size: int, steps: int, *, ray: bool) -> None:
    data = load_data("digits", "train", limit=samples).in_order()
    request = ModelRequest(model)
    named = NamedModel(request.load(), request.label, request.source, request)

    def once(backend: Backend | None, steps: int) -> tuple[float, float]:
        label, scenario = prepare("pgd20-linf-8_255", {"steps": steps})
        assert isinstance(scenario, Attack)
        with tempfile.TemporaryDirectory() as out:
            options = RunOptions(batch_size=batch_size, out=Path(out), device="cpu")
            spent, started = cpu_seconds(backend), time.perf_counter()
            measure_attack(named, data, label, scenario, options, audit=None, backend=backend)
            return time.perf_counter() - started, cpu_seconds(backend) - spent

    with ExitStack() as stack:
        backends: dict[str, Backend | None] = {"one plain loop": None}
        for count, name in ((1, "one process"), (2, "two processes")):
            backends[f"shards in {name}"] = stack.enter_context(Processes(count))
        if ray:
            start_ray(stack)
            for count, name in ((1, "one process"), (2, "two processes")):
                backends[f"shards in {name} of Ray"] = stack.enter_context(RayCluster(count, "", on_gpu=False))
        first = {name: once(backend, 1)[0] for name, backend in backends.items()}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in backends}
        for _ in range(repeats):
            for name, backend in backends.items():
                times[name].append(once(backend, steps))
    rows = []
    plain = statistics.median(wall for wall, _ in times["one plain loop"])
    for name, own in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*own, strict=True))
        rows.append((name, wall, cpu, first[name], f"{wall / plain - 1:+.1%}", f"{plain / wall:.2f}"))
    shards = -(-samples // shard_size(samples, batch_size, None))
    heading = f"{model}, {samples} digits, PGD-{steps}, {shards} shards of {plain / shards:.1f} s"
    names = (heading, "wall s", "CPU s", "wall s of the start and one step", "overhead", "times as fast")
    print(tabulate(rows, names, floatfmt=".2f"))


def start_ray(stack: ExitStack) -> None:
    """Start a cluster with room for all contenders: idle workers keep their place."""
    import ray

    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    stack.callback(ray.shutdown)


def cpu_seconds(backend: Backend | None) -> float:
    """Return the CPU seconds of this process and of those of the backend that are alive."""
    ticks = 0
    for worker in backend.workers if isinstance(backend, Processes) else ():
        assert worker.process is not None
        ticks += sum(map(int, Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="symvit_digits_adv")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--ray", action="store_true", help="compare a local Ray cluster, too")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(header())
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    loops(asked.model, asked.samples, asked.repeats, asked.batch_size, asked.steps, ray=asked.ray)


if __name__ == "__main__":
    main()
