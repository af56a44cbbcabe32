"""Time and memory of rendering a board of many records, without torch: `python benchmarks/boards.py 500 10000`.

Every model has ten records of 364 samples: one clean, nine of PGD-20 at eps from 1/255 to 9/255, each with an audit.
The board is rendered twice into two folders, each time in a process of its own; the pages must be equal byte by byte.
"""

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from robustbench_kpca.metrics import measure
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import OutcomesFile, Passes, ProtocolInfo, load_record

BOARD = Path(__file__).parents[1] / "leaderboards" / "digits"
BUDGETS = [f"{eps}/255" for eps in range(1, 10)]
RENDER = """
import sys
from robustbench_kpca.cli.main import main
code = main(["board", "render", sys.argv[1], "--out", sys.argv[2], "--json", "--quiet"])
assert code == 0 and not {"torch", "timm"} & set(sys.modules)
"""


def column(title: str, protocol: str, metric: str, extra: str = "") -> str:
    return f'[[column]]\ntitle = "{title}"\nprotocol = "{protocol}"\nmetric = "{metric}"\n{extra}'


def make(folder: Path, records: int, metrics: tuple[str, ...] | None = ("clean_accuracy", "robust_accuracy")) -> None:
    """Write a board.toml and so many records, from committed ones with other names and outcomes; None: all metrics."""
    (folder / "records").mkdir(parents=True)
    models = [f"model_{number:04d}" for number in range(records // 10)]
    text = 'title = "Synthetic"\nintro = ""\ndata = "digits"\nsplit = "test"\nseed = 0\nrank_by = "PGD-20 8/255"\n'
    text += f"models = {models!r}\n".replace("'", '"') + column("Clean", "clean", "clean_accuracy")
    for eps in BUDGETS:
        text += column(f"PGD-20 {eps}", "pgd20-linf-8_255", "robust_accuracy", f'eps = "{eps}"\n')
    (folder / "board.toml").write_text(text)
    clean, pgd = (
        load_record(next(BOARD.glob(f"records/vit_digits__*__{name}__*.record.json")))
        for name in ("clean", "pgd20-linf-8_255")
    )
    scenarios = {
        None: load_scenario("clean"),
        **{eps: load_scenario("pgd20-linf-8_255", {"eps": eps}) for eps in BUDGETS},
    }
    rng = np.random.default_rng(0)
    for model in models:
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
            outcomes = Outcomes(source.outcomes.task, source.kind, columns)
            named = source.spec.model.model_copy(update={"name": model, "parameters_sha256": model})
            protocol = ProtocolInfo(name=label, digest=scenario.digest(), resolved=scenario.model_dump(mode="json"))
            spec = source.spec.model_copy(update={"model": named, "protocol": protocol})
            passes = source.passes
            if eps is not None:
                spent = {name: int(columns[name].sum()) for name in ("forwards", "backwards")}
                passes = Passes(forwards=len(outcomes) + spent["forwards"], backwards=spent["backwards"])
            audit = pgd.audit if eps is not None else None
            if audit is not None:
                audit = audit.model_copy(
                    update={"subject": audit.subject.model_copy(update={"parameters_sha256": model})}
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


def main() -> None:
    print("| records | CPU, s | clock, s | peak memory, MiB | page, MiB | twice equal |")
    print("|---|---|---|---|---|---|")
    for count in map(int, sys.argv[1:] or ["500"]):
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


if __name__ == "__main__":
    main()
