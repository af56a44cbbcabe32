"""How far comparisons can be trusted: of protocols, of recipes over many trainings, of their test.

    RBK_DATA=FOLDER python benchmarks/compare.py protocols [--only digits] [--write]
    python benchmarks/compare.py recipes leaderboards/cifar10/records /tmp/before/leaderboards/cifar10/records
    python benchmarks/compare.py stages leaderboards
    python benchmarks/compare.py error-rates [--trainings 3 5 10] [--recipes 4] [--repeats 4000] [--level 0.05]

`protocols`: how often `autoattack-fast` and `autoattack` give the same verdict, and what each costs. Both attack the
same images of the same networks, at several eps. Where they differ, the images are listed. With `--write` the rows go
into `attacks/agreement.json`, from where `rbk eval`, `rbk records show` and boards take them. Records are kept in
`--out`, so an interrupted measurement goes on; the whole list takes about three quarters of an hour of one core.
`RBK_DATA` names the folder with `peers.py`, which defines the CIFAR-10 networks and reads their images.

`stages`: what each stage of `autoattack-fast` broke in all records below the folders, and after how many backward
passes, or queries, of that stage.

`recipes`: recipes over the trainings in several folders of records, such as those of two revisions of a board. For each
folder alone, and for all together, it prints the difference of the first recipe from each other one under one protocol,
with the interval and the p-value of a board's answer: of 97.5 %, and doubled for two comparisons. Networks of the same
weights count once. A seed of another folder is another block.

`error-rates`: the test between two recipes, simulated. It prints three shares of repeats. Equal recipes told apart:
aimed at `--level`; in the others the interval covers the true difference. Recipes told apart that differ by
`detectable_difference`: aimed at 80 %. Recipes called equivalent whose difference is the margin itself: aimed at half
of `--level` at most. Scores are x_{s,i} = a_s + b_i + e_{s,i}, with b_i of recipe and sample, and of the variance of e.
What recipes share about a sample or a seed cancels. The spread of a_s is in units of the standard error that e gives
the mean of one training; it is that of the first recipe, of the second, and of all others.
"""

import argparse
import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from _shared import header
from tabulate import tabulate
from torch import Tensor, nn

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.files import without_seed, write_atomic
from robustbench_kpca._core.strict import validate_json
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.metrics.shared.power import ALPHA, detectable_difference
from robustbench_kpca.protocols.agreement import FILE, Agreement, Measurements, Part, search_digest
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.records.record import Record, find_records, load_record
from robustbench_kpca.records.trainings import OverSamples
from robustbench_kpca.records.trainings import compare as compare_recipes
from robustbench_kpca.report import rows as board_rows
from robustbench_kpca.report.board_spec import Column
from robustbench_kpca.report.difference import difference
from robustbench_kpca.tasks.caveats import in_full

COMPARISONS = 2  # of a question: with its baseline, and with its control
PROTOCOLS = {
    "linf": ("autoattack-fast-linf-8_255", "autoattack-linf-8_255"),
    "l2": ("autoattack-fast-l2-128_255", "autoattack-l2-128_255"),
}
"""Norm -> the short protocol and the long one."""
CHUNK = 128  # images of a record
COMMAND = "RBK_DATA=FOLDER python benchmarks/compare.py protocols --write"
RECIPES = ("rpc_symvit_cifar_fast", "symvit_cifar_fast", "identity_symvit_cifar_fast")
SPREADS = ((0, 0, 0), (1, 1, 1), (2, 2, 2), (4, 4, 4), (0, 2, 0), (0, 4, 0), (4, 4, 0), (1, 1, 4))
SEEDS = 1000  # seeds of a folder are below it
Loaded = tuple[nn.Module, Tensor, Tensor]


class Rounded(nn.Module):
    """A network that sees pixels in 16 levels only, so that its gradient is zero: masked, not robust."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        logits: Tensor = self.net((15 * x).round() / 15)
        return logits


def cifar(name: str) -> Loaded:
    """Load a network and the images of `peers.py`."""
    sys.path.insert(0, os.environ.get("RBK_DATA", "."))
    import peers  # type: ignore[import-not-found]

    return (getattr(peers, name)(), *_cifar_images())


@cache
def _cifar_images() -> tuple[Tensor, Tensor]:
    import peers

    images: tuple[Tensor, Tensor] = peers.cifar10("test_jpeg")
    return images


def digits(name: str) -> Loaded:
    """Load a bundled network and the test digits."""
    return (load_model(name), *Samples.require(load_data("digits")).in_order().tensors())


def masked(name: str) -> Loaded:
    """Load a bundled network whose gradient is hidden."""
    model, x, y = digits(name)
    return Rounded(model).eval(), x, y


@dataclass(frozen=True)
class Row:
    """The first `images` of a set, shown to a network at one eps."""

    name: str
    load: Callable[[str], Loaded]
    kind: Literal["robust", "plain", "masked"]
    eps: str
    images: int
    shown_as: str = ""
    norm: Literal["linf", "l2"] = "linf"

    @property
    def title(self) -> str:
        """What a row is called, for example `vit_digits l2 0.75`."""
        return f"{self.shown_as or self.name} {self.norm} {self.eps}"


CIFAR = "CIFAR-10 test, JPEG copies"
BACKBONES = ("vit", "symvit", "rpc_symvit", "rpc_symvit_all", "fan", "symfan", "rpc_fan")
ROWS = [
    *(Row("cifar10_robust", cifar, "robust", eps, 256) for eps in ("2/255", "4/255", "8/255")),
    *(
        Row(f"{backbone}_digits", digits, "plain", eps, 64)
        for backbone in BACKBONES
        for eps in ("6/255", "8/255", "12/255")
    ),
    Row("vit_digits", masked, "masked", "8/255", 64, "vit_digits with masked gradients"),
    *(Row(f"{backbone}_digits_adv", digits, "robust", "28/255", 16) for backbone in BACKBONES),
    *(
        Row(f"{backbone}_digits_adv", digits, "robust", eps, 16)
        for backbone in BACKBONES
        for eps in ("20/255", "24/255")
    ),
    *(
        Row(f"{backbone}_digits_adv", digits, "robust", eps, 16, norm="l2")
        for eps in ("3", "2")
        for backbone in BACKBONES
    ),
    *(
        Row(f"{backbone}_digits", digits, "plain", eps, 16, norm="l2")
        for eps in ("1", "0.75")
        for backbone in BACKBONES
    ),
    *(Row("cifar10_robust", cifar, "robust", eps, 32, norm="l2") for eps in ("1", "0.5")),
]


def chunks(row: Row, protocol: str, out: Path) -> list[Record]:
    """Evaluate a row in records of `CHUNK` images, or take the records that are there."""
    model, x, y = row.load(row.name)
    end = row.images
    return [
        evaluate(
            model, x[at : min(at + CHUNK, end)], y[at : min(at + CHUNK, end)], protocol=protocol, eps=row.eps,
            audit=False, batch_size=64, out=out, name=row.shown_as or row.name,
        )
        for at in range(0, end, CHUNK)
    ]  # fmt: skip


def compare(row: Row, out: Path) -> tuple[Part, list[str]]:
    """Return the counts of a row, and a line for every image on which the two differ."""
    fast, reference = (chunks(row, protocol, out) for protocol in PROTOCOLS[row.norm])
    ours, theirs = (
        np.concatenate([record.outcomes["broken_by"] for record in records]) for records in (fast, reference)
    )
    spent = [
        sum(record.passes.forwards + record.passes.backwards for record in records) for records in (fast, reference)
    ]
    n, missed, more = len(ours), (ours == "") & (theirs != ""), (ours != "") & (theirs == "")
    ids = [f"{at * CHUNK}+{name}" for at, record in enumerate(fast) for name in record.outcomes["sample"]]
    lines = [
        f"{row.title}: image {ids[at]}, short: {ours[at] or 'robust'}, long: {theirs[at] or 'robust'}"
        for at in np.flatnonzero(missed | more)
    ]
    part = Part(
        network=row.shown_as or row.name,
        kind=row.kind,
        data=CIFAR if row.load is cifar else "digits test",
        eps=row.eps,
        images=n,
        attacked=int((theirs != "clean").sum()),
        robust=int((theirs == "").sum()),
        agreed=n - int(missed.sum()) - int(more.sum()),
        only_reference_broke=int(missed.sum()),
        only_this_broke=int(more.sum()),
        passes=round(spent[0] / n, 1),
        reference_passes=round(spent[1] / n, 1),
    )
    return part, lines


def merged(norm: str, parts: list[Part], known: Sequence[Agreement]) -> Agreement:
    """Return the measured parts of one norm, with those that the file has of other rows."""
    short, long = PROTOCOLS[norm]
    scenario = load_scenario(short)[1]
    assert isinstance(scenario, Attack)
    search = search_digest(scenario)
    before = [part for agreement in known if agreement.search == search for part in agreement.parts]
    places = {(part.network, part.eps): part for part in [*before, *parts]}
    return Agreement(
        protocol=short, reference=long, search=search, date=datetime.now(UTC).date().isoformat(), command=COMMAND,
        parts=tuple(places.values()),
    )  # fmt: skip


def protocols(arguments: argparse.Namespace) -> None:
    """Print a row for each network and eps; put them into `attacks/agreement.json` where that is asked for."""
    torch.set_num_threads(1)
    print(header(("torch", "timm", "numpy")))
    file = Path(__file__).parents[1] / "attacks" / FILE
    known = validate_json(Measurements, file.read_bytes(), str(file)).measured
    columns = {
        "network": "network", "eps": "eps", "images": "images", "attacked": "attacked", "robust": "robust",
        "agreed": "agreed", "only_reference_broke": "only autoattack broke", "only_this_broke": "only fast broke",
        "passes": "passes, fast", "reference_passes": "passes, autoattack",
    }  # fmt: skip
    measured = []
    for norm in PROTOCOLS:
        parts, differences = [], []
        for row in ROWS:
            if row.norm == norm and (not arguments.only or any(word in row.title for word in arguments.only)):
                part, lines = compare(row, arguments.out)
                parts.append(part)
                differences += lines
                print(norm, part, flush=True)
        if not parts:
            measured += [agreement for agreement in known if agreement.protocol == PROTOCOLS[norm][0]]
            continue
        measured.append(merged(norm, parts, known))
        rows = [
            [*(getattr(part, name) for name in columns), f"{part.reference_passes / part.passes:.1f}"] for part in parts
        ]
        print(f"\n{norm}\n\n" + tabulate(rows, [*columns.values(), "ratio"], tablefmt="github"))
        print("\n" + "\n".join([in_full(measured[-1]), *differences]))
    if arguments.write:
        write_atomic(file, (Measurements(measured=tuple(measured)).model_dump_json(indent=1) + "\n").encode())


def stages(asked: argparse.Namespace) -> None:
    """Print how many images each stage broke, at which target of MALT, and at which query of Square."""
    found = [path for folder in asked.folders for path in find_records(folder)]
    records = [load_record(path) for path in found if "__autoattack-fast-" in path.name]
    broken, targets, queries = Counter[str](), Counter[int](), []
    for record in records:
        outcomes = record.outcomes
        broken.update(map(str, outcomes["broken_by"]))
        for by, forth, back in zip(*(outcomes[key] for key in ("broken_by", "forwards", "backwards")), strict=True):
            if by == "malt":  # after 20 passes of the first stage and one for each of ten logits
                targets[(int(back) - 31) // 41 + 1] += 1
            if by == "square":  # each query is a forward pass alone
                queries.append(int(forth) - int(back) - 3)
    print(f"{len(records)} records, {broken.total()} images: {dict(broken)} (no name: robust)")
    print(f"MALT by target: {dict(sorted(targets.items()))}; Square by query: {sorted(queries)}")


def trainings(folders: list[Path], recipe: str, protocol: str, samples: int) -> dict[int, list[Record]]:
    """Return one cell for each network of a recipe; a seed of another folder is another seed."""
    seeds: dict[str, int] = {}
    cells: dict[int, list[Record]] = {}
    for place, folder in enumerate(folders):
        for path in find_records(folder):
            if path.name.startswith(f"{recipe}-s") and f"__{protocol}__" in path.name:
                record = load_record(path)
                if record.spec.data.n == samples:
                    seed = SEEDS * place + (without_seed(record.spec.model.name)[1] or 0)
                    cells[seeds.setdefault(record.spec.model.parameters_sha256, seed)] = [record]
    return cells


def recipes(asked: argparse.Namespace) -> None:
    """Print one line for each comparison, of each folder and of all."""
    metric = metric_for(asked.metric)
    column = Column(title=asked.protocol, protocol=asked.protocol, metric=asked.metric)
    choices = [[folder] for folder in asked.folders] + ([asked.folders] if len(asked.folders) > 1 else [])
    for folders in choices:
        print(" and ".join(map(str, folders)))
        first, *others = (trainings(folders, one, asked.protocol, asked.samples) for one in asked.recipes)
        for name, other in zip(asked.recipes[1:], others, strict=True):
            beside = [row for row in others if row is not other]
            gap = difference(metric, column, first, other, beside, 1 - ALPHA / COMPARISONS)
            test = board_rows.paired(metric, column, first, other, beside)
            if gap is None or test is None:
                print(f"  {asked.recipes[0]} - {name}: too few trainings ({len(first)} and {len(other)})")
                continue
            low, high = (metric.unit.change(end) for end in (gap.low, gap.high))
            print(
                f"  {asked.recipes[0]} - {name}: {metric.unit.change(gap.value)} [{low}, {high}], "
                f"p = {min(1.0, COMPARISONS * test.p_value):.2g} ({len(first)} and {len(other)} trainings)"
            )


def simulated(
    spreads: Sequence[float], trainings: int, recipes: int, samples: int, repeats: int, level: float
) -> list[float]:
    """Return three shares of repeats: equal recipes told apart, different ones told apart, and called equivalent."""
    rng, unit = np.random.default_rng(0), 1 / np.sqrt(samples)
    scale = unit * np.array([*spreads[:2], *[spreads[2]] * (recipes - 2)])[:, None]
    over = OverSamples(2 * unit**2 * (1 + 1 / trainings), 2 * unit**2 / trainings, samples)
    spread = float(unit * np.sqrt(1 + np.square(spreads[:2]).mean()))
    gap = detectable_difference((recipes, trainings), spread, over, alpha=level)
    counts = np.zeros(3)
    for _ in range(repeats):
        scores = rng.normal(0, 1, (2, trainings, samples)) + rng.normal(0, 1, (2, 1, samples))
        numbers = np.vstack([scores.mean(2), rng.normal(0, unit, (recipes - 2, trainings))])
        numbers += rng.normal(0, 1, (recipes, trainings)) * scale
        equal = compare_recipes(numbers, OverSamples.of(scores[0] - scores[1]))
        apart = replace(equal, first=equal.first + gap)
        low, high = apart.interval(1 - level)
        counts += equal.p_value < level, apart.p_value < level, -gap < low and high < gap
    return list(map(float, counts / repeats))


def error_rates(asked: argparse.Namespace) -> None:
    """Print one line for each number of trainings and for each set of spreads."""
    for trainings, spreads in itertools.product(asked.trainings, SPREADS):
        shares = simulated(spreads, trainings, asked.recipes, asked.samples, asked.repeats, asked.level)
        told, power, equivalent = (f"{100 * share:.1f} %" for share in shares)
        print(f"{trainings} trainings, spreads {', '.join(map(str, spreads))}: equal told apart {told}, ", end="")
        print(f"different told apart {power}, called equivalent {equivalent}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(required=True)
    part = parts.add_parser("protocols", help="compare the verdicts of autoattack-fast with those of autoattack")
    part.add_argument(
        "--only", nargs="+", default=[], help="rows such as 'vit_digits l2 0.75' that have one of these words"
    )
    part.add_argument("--out", type=Path, default=Path("runs/agreement"), help="folder of the records")
    part.add_argument("--write", action="store_true", help=f"put the rows into attacks/{FILE}")
    part.set_defaults(run=protocols)
    part = parts.add_parser("stages", help="count what each stage of autoattack-fast broke in records")
    part.add_argument("folders", nargs="+", type=Path)
    part.set_defaults(run=stages)
    part = parts.add_parser("recipes", help="compare recipes over the trainings in several folders of records")
    part.add_argument("folders", nargs="+", type=Path)
    part.add_argument("--recipes", nargs="+", default=RECIPES, help="the first is compared with each other one")
    part.add_argument("--protocol", default="pgd20-linf-1_255")
    part.add_argument("--metric", default="robust_accuracy")
    part.add_argument("--samples", type=int, default=1000)
    part.set_defaults(run=recipes)
    part = parts.add_parser("error-rates", help="simulate how often the test tells equal recipes apart")
    part.add_argument("--trainings", nargs="+", type=int, default=[3, 5, 10])
    for name, usual in (("recipes", 4), ("samples", 200), ("repeats", 4000)):
        part.add_argument(f"--{name}", type=int, default=usual)
    part.add_argument("--level", type=float, default=0.05)
    part.set_defaults(run=error_rates)
    asked = parser.parse_args()
    asked.run(asked)


if __name__ == "__main__":
    main()
