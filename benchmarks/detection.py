"""AUPR and AUROC of many resamples against scikit-learn: `python benchmarks/detection.py [IMAGES ...]`.

Half of the images are out of distribution. Both compute each number under the same 200 resamples, and take turns.
scikit-learn has no such FPR95 (the share at the threshold whose recall is nearest to 95 %), so it is timed alone.
"""

import sys
from collections.abc import Callable

import numpy as np
from _shared import cpu_times, header
from sklearn.metrics import average_precision_score, roc_auc_score
from tabulate import tabulate

from robustbench_kpca.metrics.detection import Ranking

RESAMPLES, REPEATS = 200, 3
HEAD = ("number", "images", "ms, ours", "scikit-learn", "/ ours", "largest difference")


def rows_of(images: int) -> list[tuple[object, ...]]:
    """Return the rows of the table for so many images."""
    rng = np.random.default_rng(0)
    ood = np.arange(images) % 2 == 1
    scores = rng.normal(0, 1, images) + ood
    weights = rng.multinomial(images, np.full(images, 1 / images), RESAMPLES)
    ranking = Ranking.of(scores, ood)
    references = {"AUPR": average_precision_score, "AUROC": roc_auc_score}
    rows: list[tuple[object, ...]] = []
    for name, ours in (("AUPR", ranking.average_precision), ("AUROC", ranking.auroc), ("FPR95", _fpr95(ranking))):
        reference = references.get(name)
        if reference is None:
            rows.append((name, images, 1000 * cpu_times([lambda one=ours: one(weights)], REPEATS)[0]))
            continue

        def theirs(reference: Callable[..., float] = reference) -> list[float]:
            return [reference(ood, scores, sample_weight=row) for row in weights]

        own, other = (1000 * time for time in cpu_times([lambda one=ours: one(weights), theirs], REPEATS))
        rows.append((name, images, own, other, other / own, f"{np.abs(ours(weights) - theirs()).max():.0e}"))
    return rows


def _fpr95(ranking: Ranking) -> Callable[..., object]:
    return lambda weights: ranking.fpr_at_tpr(weights=weights)


def main(sizes: list[int]) -> None:
    """Print a row for each number and size."""
    print(header(("numpy", "scikit-learn")), end="\n\n")
    rows = [row for images in sizes for row in rows_of(images)]
    print(tabulate(rows, HEAD, tablefmt="github", floatfmt=".1f", disable_numparse=[5]))


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [200, 2_000, 20_000])
