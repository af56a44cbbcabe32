"""Compare recipes over the trainings in several folders of records, such as those of two revisions of a board.

    git archive 50391e72 leaderboards/cifar10/records | tar -x -C /tmp/before
    python benchmarks/pooled.py leaderboards/cifar10/records /tmp/before/leaderboards/cifar10/records

For each folder alone, and for all of them together, it prints the difference of the first recipe from each other one
under one protocol, with the interval and the p-value of a board's answer: of 97.5 %, and doubled for two comparisons.
Networks of the same weights count once.
"""

import argparse
from pathlib import Path

from robustbench_kpca.metrics import metric_for
from robustbench_kpca.metrics.shared.power import ALPHA
from robustbench_kpca.records.record import Record, find_records, load_record
from robustbench_kpca.report import rows
from robustbench_kpca.report.answers import COMPARISONS
from robustbench_kpca.report.board_spec import Column
from robustbench_kpca.report.difference import difference

RECIPES = ("rpc_symvit_cifar_fast", "symvit_cifar_fast", "identity_symvit_cifar_fast")


def trainings(folders: list[Path], recipe: str, protocol: str, samples: int) -> list[list[Record]]:
    """Return one cell for each network of a recipe, by its weights."""
    found = {}
    for folder in folders:
        for path in find_records(folder):
            if path.name.startswith(f"{recipe}-s") and f"__{protocol}__" in path.name:
                record = load_record(path)
                if record.spec.data.n == samples:
                    found[record.spec.model.parameters_sha256] = [record]
    return list(found.values())


def main() -> None:
    """Print one line for each comparison, of each folder and of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--recipes", nargs="+", default=RECIPES, help="the first is compared with each other one")
    parser.add_argument("--protocol", default="pgd20-linf-1_255")
    parser.add_argument("--metric", default="robust_accuracy")
    parser.add_argument("--samples", type=int, default=1000)
    asked = parser.parse_args()
    metric = metric_for(asked.metric)
    column = Column(title=asked.protocol, protocol=asked.protocol, metric=asked.metric)
    choices = [[folder] for folder in asked.folders] + ([asked.folders] if len(asked.folders) > 1 else [])
    for folders in choices:
        print(" and ".join(map(str, folders)))
        first, *others = (trainings(folders, one, asked.protocol, asked.samples) for one in asked.recipes)
        for name, other in zip(asked.recipes[1:], others, strict=True):
            gap = difference(metric, column, first, other, 1 - ALPHA / COMPARISONS)
            test = rows.paired(metric, column, first, other)
            if gap is None or test is None:
                print(f"  {asked.recipes[0]} - {name}: too few trainings ({len(first)} and {len(other)})")
                continue
            low, high = (metric.unit.change(end) for end in (gap.low, gap.high))
            print(
                f"  {asked.recipes[0]} - {name}: {metric.unit.change(gap.value)} [{low}, {high}], "
                f"p = {min(1.0, COMPARISONS * test.p_value):.2g} ({len(first)} and {len(other)} trainings)"
            )


if __name__ == "__main__":
    main()
