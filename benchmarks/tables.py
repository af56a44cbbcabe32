"""What tables, boards, detection metrics and commands cost, without torch where they need none.

    python benchmarks/tables.py [large] [IMAGES ...]    # large tables of outcomes: finished and shown
    python benchmarks/tables.py show 2000               # so many records of 364 samples, shown
    python benchmarks/tables.py boards 500 10000        # a board of so many records, rendered
    python benchmarks/tables.py detection [IMAGES ...]  # AUPR and AUROC of many resamples against scikit-learn
    python benchmarks/tables.py commands [--repeats 3] [--package CHECKOUT] [--only list eval]

`large`: a grid of so many images (by default 50,000) in the 76 cells of ImageNet-C is finished, which is metrics, table
and record, and then shown, each in a process of its own that runs the package's code. So is a table of 245,569 rows
with a number each, as many as WikiText-103 has positions.

`boards`: every model has ten records of 364 samples: one clean, nine of PGD-20 at eps from 1/255 to 9/255, each with an
audit. The board is rendered twice into two folders, each time in a process of its own; the pages must be equal byte by
byte.

`detection`: half of the images are out of distribution. Both compute each number under the same resamples, in turns.
scikit-learn has no such FPR95 (the share at the threshold whose recall is nearest to 95 %), so it is timed alone.

`commands`: process CPU seconds of everyday commands, each in a process of its own; medians. `first batch` is `rbk eval`
of a bundled model up to its first forward pass, where it is stopped. With --package another checkout of the project is
measured, such as an older one.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from robustbench_kpca.metrics import measure
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import Corruption, Scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import OutcomesFile, load_record
from robustbench_kpca.records.spec import Passes, ProtocolInfo
from robustbench_kpca.tasks import task_named

BOARD = Path(__file__).parents[1] / "leaderboards" / "digits"
POSITIONS = 245_569
CLASSES = 1000
BUDGETS = [f"{eps}/255" for eps in range(1, 10)]
RENDER = """
import sys
from robustbench_kpca.cli.main import main
code = main(["board", "render", sys.argv[1], "--out", sys.argv[2], "--json", "--quiet"])
assert code == 0 and not {"torch", "timm"} & set(sys.modules)
"""
RESAMPLES, REPEATS = 200, 3
HEAD = ("number", "images", "ms, ours", "scikit-learn", "/ ours", "largest difference")
EVAL = "eval -m {model} -p clean --limit 64 -q --fresh -o {out}"
COMMANDS = [
    "--help", "eval --help",
    *(f"list {what}" for what in (
        "models", "attacks", "corruptions", "data", "protocols", "metrics", "boards", "packs", "recipes"
    )),
    "list machine", EVAL.format(model="vit_digits", out="{out}"),
    "eval -m vit_digits -p pgd20-linf-1_255 --limit 8 --audit none -q --fresh -o {out}",
    "reproduce teo2024 --scale paper --plan -o {out}", "reproduce cifar10 --scale paper --pages -o {out}/cifar10",
]  # fmt: skip
FIRST = ["vit_digits", "rpc_symvit_digits", "fan_digits", "symvit_shapes --data shapes"]
STOPPED = """
import os, sys
from robustbench_kpca.cli.main import main
from robustbench_kpca._engine.inference import runner
runner.Runner.logits = lambda *given, **named: os._exit(0)
main(sys.argv[1:])
"""
"""Imports what `rbk eval` imports first anyway, torch among it."""


def columns(scenario: Scenario, images: int) -> dict[str, NDArray[Any]]:
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


def many(records: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "board", records, None)
        line(f"{records:,} records shown", child("-c", SHOW, f"{folder}/board/records", stream="stderr"))
        line("as JSON", child("-c", SHOW, f"{folder}/board/records", "--json", stream="stderr"))


def column(title: str, protocol: str, metric: str, extra: str = "") -> str:
    return f'[[column]]\ntitle = "{title}"\nprotocol = "{protocol}"\nmetric = "{metric}"\n{extra}'


def make(folder: Path, records: int, metrics: tuple[str, ...] | None = ("clean_accuracy", "robust_accuracy")) -> None:
    """Write a board.toml and so many records, from committed ones with other names and outcomes; None: all metrics."""
    (folder / "records").mkdir(parents=True)
    models = [f"model_{number:04d}" for number in range(records // 10)]
    text = 'title = "Synthetic"\nintro = ""\ndata = "digits"\nsplit = "test"\nseed = 0\nrank_by = "PGD-20 8/255"\n'
    text += f"models = {models!r}\n".replace("'", '"') + column("Clean", "clean", "clean_accuracy")
    for budget in BUDGETS:
        text += column(f"PGD-20 {budget}", "pgd20-linf-8_255", "robust_accuracy", f'eps = "{budget}"\n')
    (folder / "board.toml").write_text(text)
    clean, pgd = (
        load_record(next(BOARD.glob(f"records/vit_digits__*__{name}__*.record.json")))
        for name in ("clean", "pgd20-linf-8_255")
    )
    scenarios: dict[str | None, tuple[str, Any]] = {
        None: load_scenario("clean"),
        **{eps: load_scenario("pgd20-linf-8_255", {"eps": eps}) for eps in BUDGETS},
    }
    rng = np.random.default_rng(0)
    for number, model in enumerate(models):
        for eps, (label, scenario) in scenarios.items():
            source = clean if eps is None else pgd
            columns = dict(source.outcomes.columns)
            if eps is not None:
                held = (columns["broken_by"] == "pgd") & (rng.random(len(source.outcomes)) < rng.random())
                columns["broken_by"] = np.where(held, "", columns["broken_by"]).astype(object)
                columns["prediction"] = np.where(held, columns["label"], columns["prediction"])
                for name, spent in (("forwards", 21), ("backwards", 20)):  # of PGD-20 on an image that stands
                    columns[name] = np.where(held, spent, columns[name])
                for name in ("linf", "l2"):
                    columns[name] = (columns[name] * (scenario.eps * 255 / 8)).astype(np.float32).astype(np.float64)
            for name in ("l2", "confidence", "nll", "max_logit"):  # no two networks have the same outcomes
                if name in columns:
                    columns[name] = (columns[name] * (1 - 1e-5 * number)).astype(np.float32).astype(np.float64)
            outcomes = Outcomes(source.outcomes.task, source.kind, columns)
            named = source.spec.model.model_copy(
                update={"name": model, "parameters_sha256": model, "probe_sha256": model}
            )
            protocol = ProtocolInfo(name=label, digest=scenario.digest(), resolved=scenario.model_dump(mode="json"))
            spec = source.spec.model_copy(update={"model": named, "protocol": protocol})
            passes = source.passes
            if eps is not None:
                forwards, backwards = (int(columns[name].sum()) for name in ("forwards", "backwards"))
                passes = Passes(forwards=len(outcomes) + forwards, backwards=backwards)
            audit = pgd.audit if eps is not None else None
            if audit is not None:
                audit = audit.model_copy(
                    update={
                        "subject": audit.subject.model_copy(update={"parameters_sha256": model}),
                        "seconds": audit.seconds + number,  # no two models have the same audit
                    }
                )
            source.model_copy(
                update={
                    "spec": spec, "audit": audit, "passes": passes, "outcomes_file": OutcomesFile.of(outcomes, spec),
                    "metrics": measure(outcomes, scenario, metrics),
                }
            ).attach(outcomes).save(folder / "records")  # fmt: skip


def render(folder: Path, out: Path) -> tuple[float, float]:
    """Return the seconds of CPU and of the clock that a process takes to render a board."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", RENDER, str(folder), str(out)], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.perf_counter() - started


def rendered(counts: list[int]) -> None:
    """Print a line for each number of records."""
    print("| records | CPU, s | clock, s | peak memory, MiB | page, MiB | twice equal |")
    print("|---|---|---|---|---|---|")
    for count in counts:
        folder = Path(tempfile.mkdtemp())
        make(folder / "board", count)
        cpu, clock = render(folder / "board", folder / "first")
        again = min(cpu, render(folder / "board", folder / "second")[0])
        pages = [sorted((folder / one).iterdir()) for one in ("first", "second")]
        same = all(a.read_bytes() == b.read_bytes() for a, b in zip(*pages, strict=True))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        size = (folder / "first" / "index.html").stat().st_size / 2**20
        print(
            f"| {count:,} | {cpu:.1f} (least {again:.1f}) | {clock:.1f} | {peak:.0f} | {size:.1f} | {same} |",
            flush=True,
        )
        shutil.rmtree(folder)


def detection_rows(images: int) -> list[tuple[object, ...]]:
    """Return the rows of the table for so many images."""
    from _shared import cpu_times
    from sklearn.metrics import average_precision_score, roc_auc_score

    from robustbench_kpca.metrics.detection import Ranking

    rng = np.random.default_rng(0)
    ood = np.arange(images) % 2 == 1
    scores = rng.normal(0, 1, images) + ood
    weights = rng.multinomial(images, np.full(images, 1 / images), RESAMPLES)
    ranking = Ranking.of(scores, ood)
    references = {"AUPR": average_precision_score, "AUROC": roc_auc_score}
    rows: list[tuple[object, ...]] = []
    numbers: dict[str, Callable[..., Any]] = {"AUPR": ranking.average_precision, "AUROC": ranking.auroc}
    for name, ours in (numbers | {"FPR95": _fpr95(ranking)}).items():
        reference = references.get(name)
        if reference is None:
            rows.append((name, images, 1000 * cpu_times([partial(ours, weights)], REPEATS)[0]))
            continue

        def theirs(reference: Callable[..., float] = reference) -> list[float]:
            return [reference(ood, scores, sample_weight=row) for row in weights]

        own, other = (1000 * time for time in cpu_times([partial(ours, weights), theirs], REPEATS))
        rows.append((name, images, own, other, other / own, f"{np.abs(ours(weights) - theirs()).max():.0e}"))
    return rows


def _fpr95(ranking: Any) -> Callable[..., Any]:
    return lambda weights: ranking.fpr_at_tpr(weights=weights)


def detection(sizes: list[int]) -> None:
    """Print a row for each number and size."""
    from _shared import header

    print(header(("numpy", "scikit-learn")), end="\n\n")
    rows = [row for images in sizes for row in detection_rows(images)]
    print(tabulate(rows, HEAD, tablefmt="github", floatfmt=".1f", disable_numparse=[5]))


def cpu_seconds(program: list[str], package: Path) -> float:
    """Run a program to its end; return the CPU seconds of its process."""
    before = os.times()
    subprocess.run(
        [sys.executable, *program], check=True, stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(package)}, cwd=package,
    )  # fmt: skip
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def commands(asked: argparse.Namespace) -> None:
    """Print the CPU seconds of every command."""
    from _shared import header

    with tempfile.TemporaryDirectory() as out:
        shutil.copytree(BOARD.parent / "cifar10", Path(out, "cifar10"))  # its 712 records are shown
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


def main() -> None:
    if sys.argv[1:2] == ["finish"]:
        finish(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    for name, usual in (("large", 50_000), ("show", 2000), ("boards", 500), ("detection", (200, 2_000, 20_000))):
        part = parts.add_parser(name)
        part.add_argument("sizes", type=int, nargs="*", default=np.atleast_1d(usual).tolist())
    part = parts.add_parser("commands")
    part.add_argument("--repeats", type=int, default=3)
    part.add_argument("--package", type=Path, default=Path(__file__).parents[1])
    part.add_argument("--only", nargs="+", default=[""])
    given = sys.argv[1:]
    asked = parser.parse_args(given if given and not given[0].isdigit() else ["large", *given])
    head = "| | CPU, s | clock, s | peak memory, MiB | table |\n|---|---|---|---|---|"
    if asked.part == "large":
        print(head)
        for images in asked.sizes:
            large(images, "imagenet-c-generated")
        large(POSITIONS, "clean")
    elif asked.part == "show":
        print(head)
        for records in asked.sizes:
            many(records)
    elif asked.part == "boards":
        rendered(asked.sizes)
    elif asked.part == "detection":
        detection(asked.sizes)
    else:
        commands(asked)


if __name__ == "__main__":
    main()
