"""Time and memory of large tables of outcomes, without torch: `python benchmarks/tables.py [IMAGES ...]`.

A grid of so many images (by default 50,000) in the 76 cells of ImageNet-C is finished, which is metrics, table
and record, and then shown, each in a process of its own that runs the package's code. So is a table of 245,569 rows
with a number each, as many as WikiText-103 has positions. Beside them: what a table of some sizes takes in both forms.
`python benchmarks/tables.py show 2000` shows so many records of 364 samples (`benchmarks/boards.py`).
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from robustbench_kpca.metrics import measure
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import Corruption, Scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import OutcomesFile, Passes, ProtocolInfo, load_record
from robustbench_kpca.tasks import task_named

BOARD = Path(__file__).parents[1] / "leaderboards" / "digits"
POSITIONS = 245_569
CLASSES = 1000


def columns(scenario: Scenario, images: int) -> dict[str, np.ndarray]:
    """Return what a model of about 76 % clean accuracy leaves, with made-up answers, cell by cell."""
    rng = np.random.default_rng(0)
    cells = scenario.cells if isinstance(scenario, Corruption) else [("none", 0)]
    ids = np.array(
        [f"val/n{number % CLASSES:08d}/ILSVRC2012_val_{number:08d}.JPEG" for number in range(images)], object
    )
    label = np.tile(rng.integers(0, CLASSES, images), len(cells))
    severity = np.repeat([level for _, level in cells], images)
    right = rng.random(len(label)) < 0.76 - 0.1 * severity
    wrong = (label + rng.integers(1, CLASSES, len(label))) % CLASSES
    return {
        "sample": np.tile(ids, len(cells)), "label": label,
        "corruption": np.repeat(np.array([name for name, _ in cells], object), images), "severity": severity,
        "prediction": np.where(right, label, wrong),
        "rank": np.where(right, 0, rng.integers(1, CLASSES, len(label))), "confidence": rng.random(len(label)),
    }  # fmt: skip


def finish(folder: Path, protocol: str, images: int) -> None:
    """Do what an evaluation does once all answers are there; print the seconds that it takes."""
    scenario = load_scenario(protocol, {"clean": True} if protocol.startswith("imagenet-c") else {})[1]
    table = task_named("classification").table(scenario.kind)
    (source,) = BOARD.glob("records/vit_digits__*__clean__*.record.json")
    like = load_record(source)
    made = columns(scenario, images)
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    outcomes = Outcomes.from_columns(table, {name: made[name] for name in table.columns})
    data = like.spec.data.model_copy(
        update={"name": "synthetic", "n": images, "classes": CLASSES, "class_names": None, "digest": "0" * 64}
    )
    resolved = ProtocolInfo(name=protocol, digest=scenario.digest(), resolved=scenario.model_dump(mode="json"))
    spec = like.spec.model_copy(update={"data": data, "protocol": resolved})
    like.model_copy(
        update={
            "spec": spec, "metrics": measure(outcomes, scenario), "outcomes_file": OutcomesFile.of(outcomes, spec),
            "passes": Passes(forwards=len(outcomes), backwards=0), "audit": None,
        }
    ).attach(outcomes).save(folder)  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
                      time.perf_counter() - started, after.ru_maxrss / 1024]))  # fmt: skip


SHOW = """
import json, resource, sys, time
started = time.perf_counter()
from robustbench_kpca.cli.main import main
code = main(["records", "show", *sys.argv[1:]])
assert code == 0 and not {"torch", "timm"} & set(sys.modules)
after = resource.getrusage(resource.RUSAGE_SELF)
numbers = [after.ru_utime + after.ru_stime, time.perf_counter() - started, after.ru_maxrss / 1024]
print(json.dumps(numbers), file=sys.stderr)
"""


def child(*command: str, stream: str = "stdout") -> list[float]:
    """Run a process; return the CPU seconds, seconds and MiB that the last line of one of its streams says."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[float] = json.loads(getattr(done, stream).splitlines()[-1])
    return found


def line(what: str, numbers: list[float], more: str = "") -> None:
    cpu, clock, peak = numbers
    print(f"| {what} | {cpu:.1f} | {clock:.1f} | {peak:.0f} | {more} |", flush=True)


def large(images: int, protocol: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        finished = child(__file__, "finish", folder, protocol, str(images))
        size = sum(path.stat().st_size for path in Path(folder).glob("*.outcomes.*")) / 2**20
        line(f"{protocol}, {images:,} images: finished", finished, f"{size:.1f} MiB")
        line(f"{protocol}, {images:,} images: shown", child("-c", SHOW, folder, stream="stderr"))


def both_forms(rows: int) -> None:
    """Say what writing and reading a table takes in both forms."""
    from robustbench_kpca.records import parquet

    scenario = load_scenario("clean")[1]
    table = task_named("classification").table("clean")
    made = columns(scenario, rows)
    outcomes = Outcomes.from_columns(table, {name: made[name] for name in table.columns})
    times, sizes = [], []
    for write, read in (
        (outcomes.to_file, lambda data: Outcomes.from_file(data, table, "it")),
        (lambda: parquet.write(outcomes.columns), lambda data: dict(parquet.read(data, table, rows, "it"))),
    ):
        started = time.perf_counter()
        data = write()
        written = time.perf_counter()
        read(data)
        times += [written - started, time.perf_counter() - written]
        sizes.append(len(data) / 2**10)
    print(f"| {rows:,} | {' | '.join(f'{one:.3f}' for one in times)} | {sizes[0]:.0f} | {sizes[1]:.0f} |", flush=True)


def many(records: int) -> None:
    import boards

    with tempfile.TemporaryDirectory() as folder:
        boards.make(Path(folder) / "board", records, None)
        line(f"{records:,} records shown", child("-c", SHOW, f"{folder}/board/records", stream="stderr"))
        line("as JSON", child("-c", SHOW, f"{folder}/board/records", "--json", stream="stderr"))


def main() -> None:
    if sys.argv[1:2] == ["finish"]:
        finish(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        return
    head = "| | CPU, s | clock, s | peak memory, MiB | table |\n|---|---|---|---|---|"
    if sys.argv[1:2] == ["show"]:
        print(head)
        many(int(sys.argv[2]))
        return
    if sys.argv[1:2] == ["forms"]:
        print("| rows | csv.xz written, s | read, s | parquet written, s | read, s | csv.xz, KiB | parquet, KiB |")
        print("|---|---|---|---|---|---|---|")
        for rows in (1_000, 10_000, 30_000, 100_000, 300_000):
            both_forms(rows)
        return
    print(head)
    for images in map(int, sys.argv[1:] or ["50000"]):
        large(images, "imagenet-c-generated")
    large(POSITIONS, "clean")


if __name__ == "__main__":
    main()
