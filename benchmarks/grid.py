"""Pictures a second of a corruption grid: the model alone, making the pictures alone, and both as `rbk eval` does it.

    python benchmarks/grid.py --data PHOTOS --checkpoint deit_tiny.safetensors [--limit 60] [--workers 0 2]

Where all cores are used, a picture that costs g to make and m to classify takes at least (g + m) / cores: both at once
cannot reach the speed of the model alone unless g is small. That bound is printed beside what was reached. CPU is that
of this process and its workers.
"""

import argparse
import os
import time
from collections.abc import Callable

import torch
from _shared import header
from tabulate import tabulate

from robustbench_kpca.evaluation.forward_only import show_all
from robustbench_kpca.evaluation.requests import DataRequest
from robustbench_kpca.inference.runner import Runner, frozen
from robustbench_kpca.models import load_model
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import cells_of
from robustbench_kpca.tasks import task_named


def timed(run: Callable[[], int]) -> tuple[int, float, float]:
    """Return the pictures of a run, its wall seconds and its CPU seconds, with those of finished workers."""
    before, started = os.times(), time.perf_counter()
    pictures = run()
    after, wall = os.times(), time.perf_counter() - started
    return pictures, wall, sum(after[:4]) - sum(before[:4])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", default="timm:deit_tiny_patch16_224")
    parser.add_argument("--checkpoint")
    parser.add_argument("--protocol", default="imagenet-c-generated")
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    asked = parser.parse_args()
    print(header())
    model = load_model(asked.model, asked.checkpoint)
    data = DataRequest(asked.data, limit=asked.limit).load_for(model).in_order()
    protocol = load_scenario(asked.protocol)[1]
    compute, cores = task_named(data.task).compute, len(os.sched_getaffinity(0))
    rows = range(len(cells_of(protocol)) * len(data))

    def make(workers: int) -> int:
        how = {"batch_size": asked.batch_size, "workers": workers, "seed": 0, "frost": "generated"}
        return sum(len(numbers) for numbers, _ in compute.shown(data, protocol, rows, **how))

    def classify() -> int:
        runner = Runner(model, asked.batch_size, torch.device("cpu"))
        images = torch.rand(asked.batch_size, 3, *data.size(0))
        with frozen(model):
            for _ in range(batches):
                runner.logits(images)
        return batches * asked.batch_size

    def both(workers: int) -> int:
        runner = Runner(model, asked.batch_size, torch.device("cpu"))
        results = compute.results("model", runner, data, protocol, None)
        with frozen(model):
            show_all(
                [results], data, protocol, batch_size=asked.batch_size, seed=0, workers=workers, frost="generated",
                progress=None,
            )  # fmt: skip
        return len(rows)

    batches = 1
    classify()
    batches = max(4, len(rows) // asked.batch_size // 4)
    found = {"model alone": timed(classify)}
    for workers in asked.workers:
        found[f"pictures alone, workers {workers}"] = timed(lambda workers=workers: make(workers))
    for workers in asked.workers:
        found[f"end to end, workers {workers}"] = timed(lambda workers=workers: both(workers))
    table = [
        (name, pictures, f"{pictures / wall:.1f}", f"{1000 * cpu / pictures:.1f}")
        for name, (pictures, wall, cpu) in found.items()
    ]
    print(tabulate(table, ("", "pictures", "pictures/s", "CPU ms a picture"), disable_numparse=True))
    m, g = (1000 * found[name][2] / found[name][0] for name in list(found)[:2])
    bound = 1000 * cores / (m + g)
    print(f"bound of both on {cores} cores: {bound:.1f} pictures/s (model {m:.1f} ms, making {g:.1f} ms)")
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
