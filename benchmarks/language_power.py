"""Say which difference between two recipes a board of language models would have found.

    python benchmarks/language_power.py leaderboards/wikitext/records

For every pair of recipes (records named NAME-s0, NAME-s1, ...) it prints the difference of their mean log
perplexities, its standard error, and the least difference that the board's test finds with a probability of 80 % at
p < 0.05, without Holm's adjustment. With k trainings each, s_1 and s_2 the standard deviations of log perplexity over
trainings, and e the standard error over articles (a bootstrap, the same articles for both),

    V = s_1^2 / k + s_2^2 / k + e^2,   least = (t_{0.975, df} + t_{0.8, df}) sqrt(V),   df as in `records/trainings.py`

Both standard deviations are themselves estimated from k trainings; so the least difference is known to a factor of two.
"""

import argparse
import re
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from robustbench_kpca.records.record import find_records, load_record

RESAMPLES = 2000


def of_articles(folder: Path) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]:
    """Return, by recipe, the sums of -log p of the clean text, (trainings, articles); and the words of each article."""
    found, words = defaultdict(list), np.zeros(0)
    for path in sorted(find_records(folder)):
        record = load_record(path)
        if record.kind == "attack":
            continue
        clean = record.outcomes.where(record.outcomes["severity"] == 0)
        _, article = np.unique(clean["article"], return_inverse=True)
        found[re.sub(r"-s\d+$", "", record.spec.model.name)].append(np.bincount(article, clean["nll"]))
        words = np.bincount(article).astype(float)
    return {name: np.stack(rows) for name, rows in found.items()}, words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    sums, words = of_articles(parser.parse_args().records)
    drawn = np.random.default_rng(0).multinomial(len(words), np.full(len(words), 1 / len(words)), RESAMPLES)
    print(f"{len(words)} articles, {words.sum():.0f} words")
    for name, rows in sums.items():
        logs = rows.sum(1) / words.sum()
        spread = f", over trainings s = {logs.std(ddof=1):.4f}" if len(rows) > 1 else ""
        print(f"{name}: {len(rows)} trainings, log perplexity {logs.mean():.4f}{spread}")
    print("| pair | difference | standard error | of it articles | least difference found with 80 % |")
    print("|---|---:|---:|---:|---:|")
    for first, second in combinations([name for name, rows in sums.items() if len(rows) > 1], 2):
        logs = [sums[name].sum(1) / words.sum() for name in (first, second)]
        resampled = [(drawn @ sums[name].mean(0)) / (drawn @ words) for name in (first, second)]
        articles = float(np.std(resampled[0] - resampled[1]))
        parts = [float(one.var(ddof=1)) / len(one) for one in logs]
        variance = sum(parts) + articles**2
        freedom = variance**2 / sum(part**2 / (len(one) - 1) for part, one in zip(parts, logs, strict=True))
        least = (stats.t.ppf(0.975, freedom) + stats.t.ppf(0.8, freedom)) * variance**0.5
        print(
            f"| {first} - {second} | {logs[0].mean() - logs[1].mean():+.4f} | {variance**0.5:.4f} | {articles:.4f} | "
            f"{least:.4f} |"
        )


if __name__ == "__main__":
    main()
