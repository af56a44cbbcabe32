"""How far an evaluation goes beyond one process and machine (benchmarks/scale.md): what parts cost, and many workers.

    python benchmarks/scale.py processes [--samples 128] [--steps 100] [--repeats 3] [--ray]     # one, two, and Ray
    python benchmarks/scale.py fit                       # a pass, a shard, a row: least squares over small runs
    python benchmarks/scale.py files --shards 1000000 --rows 1 10    # planner and merger alone: time and memory
    python benchmarks/scale.py run                       # ten records of 10^7 samples, 1,000 workers, virtual time

All times but virtual ones are CPU seconds of one thread. Shards are written without waiting for the disk. `files` runs
each size in a process of its own, whose peak of memory is shown.

`processes` compares one plain loop with its shards in one process and in two. One thread a process; medians of the
repeats, the contenders take turns. The processes run already when the clock starts; what their start and a run of one
step cost is shown beside. CPU seconds are those of all processes; those of Ray are not counted. The last two columns:
time beyond that of the plain loop, and how often faster than it. Two processes need two free cores. More steps make
longer shards.
"""

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from _virtual_run import Simulation, World
from scipy.optimize import nnls
from tabulate import tabulate

from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.shard_folder import Running, State, now, write_state
from robustbench_kpca.records.shards import Made, Shard, merge, plan_shards, read_made, shard_size, to_bytes
from robustbench_kpca.tasks import task_named

TABLE = task_named("classification").table("attack")
BATCH = 64
FITTED = ((5, 64), (20, 64), (60, 64), (5, 160), (60, 160))
"""Steps of PGD and samples that the model is fitted to; `HELD_OUT` it is checked on."""
HELD_OUT = ((30, 96), (100, 128), (10, 256))


class Text:
    """Made-up outcomes of a shard, as text."""

    def __init__(self, ids: Sequence[str], first: int) -> None:
        rows = (
            f"{name},{number % 1000},{number % 997},{number % 991},{number % 5},pgd,0.0313725509,0.25,{number % 21},7,"
            "0,0,0"
            for number, name in enumerate(ids, first)
        )
        self.text = "\n".join([",".join(TABLE.columns), *rows, ""]).encode()

    def to_csv(self) -> bytes:
        """Return the text, as `Outcomes` do."""
        return self.text


def write(folder: Path, shards: Sequence[Shard], ids: Sequence[str]) -> None:
    """Write files of shards; how fast a disk is, is not asked here."""
    for shard in shards:
        text: Any = Text(ids[shard.first : shard.last], shard.first)
        with open(f"{folder}/{shard.name}", "wb") as file:  # noqa: PTH123
            file.write(to_bytes(shard, text, Made(0, 60.0, BATCH)))


def require_right(outcomes: Outcomes, ids: Sequence[str]) -> None:
    """Compare every id, and a number of every row, with what was written."""
    assert outcomes["sample"].tolist() == ids
    assert (outcomes["prediction"] == np.arange(len(ids)) % 991).all()


def lap(clock: list[float]) -> float:
    """Return the CPU seconds since the last call."""
    now = time.process_time()
    spent, clock[0] = now - clock[0], now
    return spent


def files(count: int, rows: int) -> dict[str, float]:
    """Plan, write, look through and merge so many shards of so many samples."""
    ids = [f"{number:08d}" for number in range(count * rows)]
    clock = [time.process_time()]
    shards = plan_shards(ids, "key", rows)
    took = {"plan s": lap(clock)}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write(place, shards, ids)
        lap(clock)
        assert all(read_made(place, shard) for shard in shards)
        took["look through s"] = lap(clock)
        wall = time.perf_counter()
        merged = merge(place, shards, TABLE, [("none", 0)])
        took["merge s"], took["merge, wall s"] = lap(clock), time.perf_counter() - wall
        took["plan + merge s"] = took["plan s"] + took["merge s"]
        took["peak GiB"] = peak()
        require_right(merged, ids)
    return took


def apart(count: int, rows: int) -> dict[str, float]:
    """Do `files` in a process of its own."""
    command = [sys.executable, __file__, "files", "--json", "--shards", str(count), "--rows", str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def start_ray(stack: ExitStack) -> None:
    """Start a cluster with room for all contenders: idle workers keep their place."""
    import ray

    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    stack.callback(ray.shutdown)


def cpu_seconds(engine: Any) -> float:
    """Return the CPU seconds of this process and of those of an engine that are alive."""
    from robustbench_kpca.evaluation.processes import Processes

    ticks = 0
    for worker in engine.processes.values() if isinstance(engine, Processes) else ():
        ticks += sum(map(int, Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def evaluated(named: Any, samples: int, steps: int, batch_size: int, engine: Any) -> Any:
    """Attack so many digits with an engine; return the record, and the seconds."""
    from robustbench_kpca import load_data
    from robustbench_kpca._core.progress import python_screen
    from robustbench_kpca.evaluation.execute import execute
    from robustbench_kpca.evaluation.options import RunOptions
    from robustbench_kpca.evaluation.plan import Job, make_plan
    from robustbench_kpca.evaluation.reporter import Reporter
    from robustbench_kpca.evaluation.requests import DataRequest

    data = DataRequest(load_data("digits", "train", limit=samples))
    with tempfile.TemporaryDirectory() as out:
        options = RunOptions(batch_size=batch_size, out=Path(out), device="cpu")
        plan = make_plan([Job(named, ["pgd20-linf-8_255"], {"steps": steps})], data, options, audit=False)
        started = time.perf_counter()
        with python_screen(quiet=True) as screen:
            [record] = execute(plan, Reporter(screen), lambda _: nullcontext(engine))
        return record, time.perf_counter() - started


def observed(model: str, runs: Sequence[tuple[int, int]], batch: int) -> Iterator[tuple[list[float], float]]:
    """Evaluate in one other process; yield what was counted (forwards, backwards, shards) and the CPU seconds."""
    from robustbench_kpca.evaluation.processes import Processes
    from robustbench_kpca.evaluation.requests import ModelRequest

    named = ModelRequest(model).named()
    with closing(Processes(1)) as engine:
        for warm, (steps, samples) in enumerate((runs[0], *runs)):
            before = cpu_seconds(engine)
            record, _ = evaluated(named, samples, steps, batch, engine)
            spent = cpu_seconds(engine) - before
            shards = -(-samples // shard_size(samples, batch, None))
            shown = record.passes.forwards + samples + shards * batch  # the clean pass, and the first batch once more
            if warm:
                yield [shown, record.passes.backwards, shards, 1.0], spent


def processes(model: str, samples: int, repeats: int, batch_size: int, steps: int, *, ray: bool) -> None:
    """Print what one plain loop, its shards in one process and in two take, one thread each."""
    import torch

    from robustbench_kpca.evaluation.engines import Serial
    from robustbench_kpca.evaluation.processes import Processes
    from robustbench_kpca.evaluation.ray_cluster import RayCluster
    from robustbench_kpca.evaluation.requests import ModelRequest

    torch.set_num_threads(1)
    named = ModelRequest(model).named()

    def once(engine: Any, steps: int) -> tuple[float, float]:
        spent = cpu_seconds(engine)
        return evaluated(named, samples, steps, batch_size, engine)[1], cpu_seconds(engine) - spent

    with ExitStack() as stack:
        engines: dict[str, Any] = {"one plain loop": Serial()}
        for count, name in ((1, "one process"), (2, "two processes")):
            engines[f"shards in {name}"] = stack.enter_context(closing(Processes(count)))
        if ray:
            start_ray(stack)
            for count, name in ((1, "one process"), (2, "two processes")):
                engine = stack.enter_context(closing(RayCluster(count, "", on_gpu=False)))
                engines[f"shards in {name} of Ray"] = engine
        first = {name: once(engine, 1)[0] for name, engine in engines.items()}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
        for _ in range(repeats):
            for name, engine in engines.items():
                times[name].append(once(engine, steps))
    rows = []
    plain = statistics.median(wall for wall, _ in times["one plain loop"])
    for name, own in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*own, strict=True))
        rows.append((name, wall, cpu, first[name], f"{wall / plain - 1:+.1%}", f"{plain / wall:.2f}"))
    shards = -(-samples // shard_size(samples, batch_size, None))
    heading = f"{model}, {samples} digits, PGD-{steps}, {shards} shards of {plain / shards:.1f} s"
    names = (heading, "wall s", "CPU s", "wall s of the start and one step", "overhead", "times as fast")
    print(tabulate(rows, names, floatfmt=".2f"))


def fit(model: str, batch: int) -> None:
    seen = list(observed(model, (*FITTED, *HELD_OUT), batch))
    rows, seconds = (np.array(part) for part in zip(*seen, strict=True))
    found, _ = nnls(rows[: len(FITTED)] / seconds[: len(FITTED), None], np.ones(len(FITTED)))  # relative errors
    names = ("a forward pass", "a backward pass", "a shard", "a record")
    print(tabulate(zip(names, found * 1000, strict=True), (model, "ms"), floatfmt=".3f"))
    said = rows @ found
    table = [
        (steps, samples, kind, spent, told, told / spent)
        for (steps, samples), kind, spent, told in zip(
            (*FITTED, *HELD_OUT), ["fitted"] * len(FITTED) + ["held out"] * len(HELD_OUT), seconds, said, strict=True
        )
    ]
    print(tabulate(table, ("PGD steps", "samples", "", "measured s", "model s", "model / measured"), floatfmt=".2f"))
    small, many = apart(20_000, 1), apart(2_000, 500)
    row = (many["merge s"] - small["merge s"] / 10) / (2_000 * 500 - 2_000)
    shard = small["merge s"] / 20_000 - row
    with tempfile.TemporaryDirectory() as folder:
        running = {
            f"{number:08d}-{number + 1024:08d}-{'0' * 16}.shard": Running("machine", number, now(), 512, 1024, 10.0)
            for number in range(1000)
        }
        state, clock = State("m", "d", "p", 10**7, 10_000, running), [time.process_time()]
        for _ in range(100):
            write_state(Path(folder), state)
        told = lap(clock) / 100
    costs = [("plan a shard", small["plan s"] / 20_000), ("look through a shard", small["look through s"] / 20_000),
             ("merge a shard", shard), ("merge a row", row), ("tell a status of 1,000 workers", told)]  # fmt: skip
    print(tabulate([(name, value * 1e6) for name, value in costs], ("the first process", "us"), floatfmt=".1f"))


def run(samples: int, records: range, merged: int, world: World) -> None:
    """Simulate the workers; plan, write and merge for real."""
    size = shard_size(samples, BATCH, None)
    ids = [f"{number:08d}" for number in range(samples)]
    names = ("record", "shards", "attempts", "lost", "pre-empted", "given up", "ideal s", "virtual s", "wasted s",
             "decide s", "plan s", "merge s", "peak GiB")  # fmt: skip
    print(*names, sep="\t", flush=True)
    ideal = makespan = 0.0
    for record in records:
        clock = [time.process_time()]
        shards = plan_shards(ids, f"key {record}", size)
        planned = lap(clock)
        told = Simulation(shards, dataclasses.replace(world, seed=world.seed + record)).run()
        assert set(told.finished) | set(told.given_up) == set(shards)
        assert set(told.finished.values()) == {1}
        took = 0.0
        if record < merged:
            assert not told.given_up  # else there is nothing to merge
            with tempfile.TemporaryDirectory() as folder:
                write(Path(folder), list(told.finished), ids)  # in the order in which they were finished
                lap(clock)
                outcomes = merge(Path(folder), shards, TABLE, [("none", 0)])
                took = lap(clock)
                require_right(outcomes, ids)
        row = (told.ideal, told.makespan, told.wasted, told.deciding, planned, took, peak())
        counts = (record, len(shards), told.attempts, told.lost, told.preempted, len(told.given_up))
        print(*counts, *(f"{value:.1f}" for value in row), sep="\t", flush=True)
        ideal, makespan = ideal + told.ideal, makespan + told.makespan
    print(f"all: {makespan / 3600:.2f} virtual hours, {100 * ideal / makespan:.0f} % of the ideal speed")


def peak() -> float:
    """Return the most memory that this process has had, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    several = commands.add_parser("processes")
    several.add_argument("--model", default="symvit_digits_adv")
    several.add_argument("--steps", type=int, default=100)
    several.add_argument("--samples", type=int, default=128)
    several.add_argument("--repeats", type=int, default=3)
    several.add_argument("--batch-size", type=int, default=16)
    several.add_argument("--ray", action="store_true", help="compare a local Ray cluster, too")
    fitted = commands.add_parser("fit")
    fitted.add_argument("--model", default="symvit_digits_adv")
    fitted.add_argument("--batch-size", type=int, default=16)
    alone = commands.add_parser("files")
    alone.add_argument("--shards", type=int, nargs="+", default=[10_000, 100_000])
    alone.add_argument("--rows", type=int, nargs="+", default=[1, 10])
    alone.add_argument("--json", action="store_true")
    virtual = commands.add_parser("run")
    virtual.add_argument("--samples", type=int, default=10**7)
    virtual.add_argument(
        "--records", type=int, nargs=2, default=(0, 10), help="the first one, and the one after the last"
    )
    virtual.add_argument("--merge", type=int, default=10**9, help="only the first so many records are merged")
    for field in dataclasses.fields(World):
        default = 60.0 if field.name == "seconds" else field.default
        virtual.add_argument(f"--{field.name}", type=type(default), default=default)
    virtual.set_defaults(life=7200.0, every=300.0, share=0.1, away=300.0)
    asked = parser.parse_args()
    if asked.command == "files" and asked.json:
        print(json.dumps(files(asked.shards[0], asked.rows[0])))
        return
    import torch
    from _shared import header

    torch.set_num_threads(1)
    print(header())
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    if asked.command == "processes":
        processes(asked.model, asked.samples, asked.repeats, asked.batch_size, asked.steps, ray=asked.ray)
    elif asked.command == "fit":
        fit(asked.model, asked.batch_size)
    elif asked.command == "files":
        found = {(count, rows): apart(count, rows) for count in asked.shards for rows in asked.rows}
        table = [(count, rows, *took.values()) for (count, rows), took in found.items()]
        print(tabulate(table, ("shards", "samples a shard", *next(iter(found.values()))), floatfmt=".2f"))
    else:
        run(
            asked.samples,
            range(*asked.records),
            asked.merge,
            World(**{one.name: getattr(asked, one.name) for one in dataclasses.fields(World)}),
        )


if __name__ == "__main__":
    main()
