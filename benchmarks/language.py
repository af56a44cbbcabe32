"""Measure the sliding window of stride 1 against a loop, and the power of a board of language models.

    OMP_NUM_THREADS=1 python benchmarks/language.py
    OMP_NUM_THREADS=1 python benchmarks/language.py --words 245569   # what a record of WikiText-103's test part costs
    OMP_NUM_THREADS=1 python benchmarks/language.py --step softmax_lm_paper   # one training step of a model
    python benchmarks/language.py --power leaderboards/wikitext/records   # which differences a board would have found

Ours is the whole `evaluate`: windows, losses, metrics with their intervals, digests. The loop is that of the published
code: a forward pass a word, logits at every place of the window. Both give the same losses; the largest difference is
printed. Times are medians of interleaved runs.

`--power` prints, for every pair of recipes (records named NAME-s0, NAME-s1, ...), the difference of their mean log
perplexities, its standard error, and the least difference that the board's test finds with a probability of 80 % at
p < 0.05, not adjusted (`detectable_difference`). Seeds are blocks, and the error over articles is that of a bootstrap,
the same articles for both. The spread is estimated from few trainings, so the least difference is known to a factor of
two. Recipes with another number of trainings lend no spread.
"""

import argparse
import re
import resource
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import _shared
import numpy as np
import torch
from numpy.typing import NDArray
from timm.optim import create_optimizer_v2

from robustbench_kpca import evaluate
from robustbench_kpca.data.text import Text
from robustbench_kpca.data.vocabulary import Vocabulary
from robustbench_kpca.metrics import measure
from robustbench_kpca.metrics.shared.power import detectable_difference
from robustbench_kpca.models import create_model
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import find_records, load_record
from robustbench_kpca.records.text import MOST, pack, unpack
from robustbench_kpca.records.trainings import OverSamples, residual_variance
from robustbench_kpca.records.trainings import compare as compare_recipes
from robustbench_kpca.tasks.language import TASK

MODELS: dict[str, dict[str, Any]] = {
    "softmax_lm_tiny": {},
    "rpc_lm_tiny": {},
    "softmax_lm_small": {"vocab_size": 5000, "window": 64, "depth": 2},
}
WORDS = (256, 1024, 4096)
RESAMPLES = 2000


def text(words: int, vocabulary: int) -> Text:
    """Return a text of random words in articles of 2,000."""
    stream = np.random.default_rng(0).integers(0, vocabulary, words + 1)
    names = ["<eos>", *(f"w{number}" for number in range(vocabulary - 1))]
    return Text("random", "test", stream, Vocabulary(names), articles=np.arange(words + 1) // 2000)


def literal(model: Any, stream: NDArray[Any]) -> list[float]:
    """Return the losses of the loop: the first window counts all its places, a later one its last."""
    window: int = model.window
    found: list[float] = []
    words = torch.from_numpy(stream.astype(np.int64))
    with torch.no_grad():
        for start in range(len(stream) - window):
            logits = model(words[start : start + window].float()[None, None, None])[0, :, 0]
            losses = -logits.log_softmax(0).gather(0, words[None, start + 1 : start + window + 1])[0]
            found += losses.tolist() if start == 0 else [float(losses[-1])]
    return found


def compare(name: str, words: int, repeats: int) -> str:
    """Return one row: seconds of the loop and of ours, their ratio, and the largest difference of a loss."""
    torch.manual_seed(0)
    model = create_model(name, **MODELS[name]).eval()
    data, results = text(words, model.vocab_size), {}

    def ours() -> None:
        results["ours"] = evaluate(model, data, protocol="clean").outcomes["nll"]

    def loop() -> None:
        results["loop"] = np.array(literal(model, data.stream))

    slow, fast = _shared.wall_times([loop, ours], repeats)
    apart = float(np.abs(results["ours"] - results["loop"]).max())
    return f"| {name} {model.window} | {words:,} | {slow:.2f} | {fast:.2f} | {slow / fast:.1f} | {apart:.1e} |"


def table(words: int) -> list[str]:
    """Return what is done with the outcomes of so many positions, and how many seconds each takes."""
    rng, place = np.random.default_rng(0), np.arange(1, words + 1)
    columns: dict[str, Any] = {
        "corruption": ["none"] * words, "severity": np.zeros(words), "sample": [f"{(p - 1) // 64:07d}" for p in place],
        "position": place, "article": place // 4000,
        "swapped": np.zeros(words), "nll": rng.gamma(2.0, 2.0, words),
    }  # fmt: skip
    outcomes = Outcomes.from_columns(TASK.table("clean"), columns)
    scenario, file = load_scenario("clean", {})[1], pack(outcomes.to_csv())
    steps: dict[str, Callable[[], object]] = {
        "gather columns": lambda: Outcomes.from_columns(TASK.table("clean"), columns),
        "write": lambda: pack(outcomes.to_csv()),
        "read": lambda: Outcomes.from_text(unpack(file, MOST, "file"), TASK.table("clean"), "file"),
        "metrics, 2,000 resamples": lambda: measure(outcomes, scenario),
    }
    lines = [f"{words:,} positions, file of {len(file) / 2**20:.1f} MiB"]
    for name, run in steps.items():
        started = time.perf_counter()
        run()
        lines.append(f"| {name} | {time.perf_counter() - started:.2f} s |")
    return [*lines, f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB"]


def step(name: str, windows: int) -> list[str]:
    """Return how long the parts of one training step take, as `rbk train` does them, on random words."""
    torch.manual_seed(0)
    model = create_model(name).train()
    words = torch.randint(model.vocab_size, (windows, 1, 1, model.window + 1))
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-4, weight_decay=0.01)
    training, now, spent = TASK.compute.training, time.process_time, []
    assert training is not None
    for _ in range(2):  # the first has the allocations of the optimiser
        times = [now()]
        logits = model(words[..., :-1].float())
        times.append(now())
        losses = training.losses(logits.float(), words[:, 0, :, 1:], 0.0)
        times.append(now())
        (losses.sum() / words[..., 1:].numel()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        times.append(now())
        optimizer.step()
        optimizer.zero_grad()
        times.append(now())
        del logits, losses
        spent = [*np.diff(times).tolist(), times[-1] - times[0]]
    count, places = sum(one.numel() for one in model.parameters()), windows * model.window
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    parts = zip(("forward", "loss", "backward", "optimiser", "together"), spent, strict=True)
    return [
        f"{name}: {count:,} parameters, {model.vocab_size:,} words, {windows} x {model.window} places",
        *(f"| {part} | {seconds:.2f} s |" for part, seconds in parts),
        f"{places / spent[-1]:.0f} words a second; peak memory {peak:.1f} GiB",
    ]


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


def power(records: Path) -> None:
    """Print the least difference of every pair of recipes that the board's test would have found."""
    sums, words = of_articles(records)
    drawn = np.random.default_rng(0).multinomial(len(words), np.full(len(words), 1 / len(words)), RESAMPLES)
    print(f"{len(words)} articles, {words.sum():.0f} words")
    for name, rows in sums.items():
        logs = rows.sum(1) / words.sum()
        spread = f", over trainings s = {logs.std(ddof=1):.4f}" if len(rows) > 1 else ""
        print(f"{name}: {len(rows)} trainings, log perplexity {logs.mean():.4f}{spread}")
    print("| pair | difference | standard error | of it articles | least difference found with 80 % |")
    print("|---|---:|---:|---:|---:|")
    logs = {name: rows.sum(1) / words.sum() for name, rows in sums.items() if len(rows) > 1}
    for first, second in combinations(logs, 2):
        resampled = [(drawn @ sums[name].mean(0)) / (drawn @ words) for name in (first, second)]
        articles = float(np.std(resampled[0] - resampled[1]))
        others = [logs[name] for name in logs.keys() - {first, second} if len(logs[name]) == len(logs[first])]
        numbers, samples = np.array([logs[first], logs[second], *others]), OverSamples(articles**2)
        both = compare_recipes(numbers, samples)
        spread = residual_variance(numbers[: both.recipes]) ** 0.5
        least = detectable_difference((both.recipes, both.trainings), spread, samples)
        print(f"| {first} - {second} | {both.difference:+.4f} | {both.error:.4f} | {articles:.4f} | {least:.4f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=MODELS, help="one model")
    parser.add_argument("--words", type=int, help="only: what so many positions cost in a record")
    parser.add_argument("--step", metavar="MODEL", help="only: one training step of a model, such as softmax_lm_paper")
    parser.add_argument("--windows", type=int, default=1, help="of the batch of --step")
    parser.add_argument("--power", metavar="RECORDS", type=Path, help="only: what a board's test would have found")
    asked = parser.parse_args()
    if asked.power:
        power(asked.power)
        return
    print(_shared.header(("torch", "numpy")))
    if asked.step:
        print("\n".join(step(asked.step, asked.windows)))
        return
    if asked.words:
        print("\n".join(table(asked.words)))
        return
    print("| model, window | words | loop, s | ours, s | loop / ours | largest difference, nats |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in [asked.only] if asked.only else MODELS:
        for words in WORDS:
            print(compare(name, words, asked.repeats), flush=True)


if __name__ == "__main__":
    main()
