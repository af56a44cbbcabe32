"""Measure the kernel-PCA claims, with time and memory: the data for docs and figures.

- `photographs`: a model on a folder of photographs, all claims: verdicts, time and memory; by default DeiT-Tiny,
  100 images. `rbk diagnose` writes the statistics of every layer.
- `bundled`: every bundled model of the digits.
- `power`: the verdict on value vectors for V = alpha V_theory + (1 - alpha) noise, judged like a model's values; keys
  and noise are Gaussian, V_theory and noise have norm 1. The tests of the thresholds use this curve, too; --csv writes
  the figure's data.
- `chance`: the similarities of unrelated random matrices.
- `memory`: peak resident memory when diagnosing 10, 20 and 40 images, each in a separate process.

    python benchmarks/diagnostics.py photographs --model peers:deit_tiny --data DIR [--images 100]
    python benchmarks/diagnostics.py bundled [--images 20]
    python benchmarks/diagnostics.py power [--key-std 0.3 0.6 1] [--csv FILE]
    python benchmarks/diagnostics.py chance [--tokens 197] [--width 64]
    python benchmarks/diagnostics.py memory --model peers:deit_tiny --data DIR
"""

import argparse
import csv
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from _shared import header
from tabulate import tabulate
from torch import Tensor, nn

from robustbench_kpca import load_model
from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.evaluation.requests import DataRequest, NamedModel
from robustbench_kpca.models.bundle import bundled as bundled_models
from robustbench_kpca.study.diagnostics import CLAIMS, tables, thresholds
from robustbench_kpca.study.diagnostics.diagnosis import Diagnosis, Outcome
from robustbench_kpca.study.diagnostics.kernel import spectrum
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.procedures import corrected
from robustbench_kpca.study.diagnostics.run import chance_levels, diagnose
from robustbench_kpca.study.diagnostics.sources import ImageSource
from robustbench_kpca.study.diagnostics.totals import Totals, block_orders, draws_for

ALPHAS = tuple(round(0.05 * step, 2) for step in range(21))


@dataclass(frozen=True)
class Point:
    """The result at one alpha: mean linear CKA, chance level, fraction of heads above chance, and the verdict."""

    alpha: float
    linear_cka: float
    chance: float
    above_chance: float
    outcome: Outcome


def power_curve(
    alphas: Sequence[float],
    *,
    tokens: int = 197,
    width: int = 64,
    heads: int = 6,
    images: int = 10,
    block: int = 5,
    key_std: float = 1.0,
    seed: int = 0,
) -> list[Point]:
    """Judge the values for each alpha; keys and noise are the same for all."""
    shape = (images, heads, tokens, width)
    keys = key_std * _gaussian(shape, seed, "keys")
    theory, _ = spectrum(keys).theoretical_values(width)
    noise = _gaussian(shape, seed, "noise")
    unit_theory, unit_noise = (x / x.norm(dim=(-2, -1), keepdim=True) for x in (theory, noise))
    return [_point(alpha, keys, alpha * unit_theory + (1 - alpha) * unit_noise, block, seed) for alpha in alphas]


def _point(alpha: float, keys: Tensor, values: Tensor, block: int, seed: int) -> Point:
    claim = CLAIMS.get("value_vectors")
    images, heads = keys.shape[:2]
    numbers = tuple(range(heads))
    totals = Totals(claim, [(0, head) for head in numbers], draws_for(heads))
    for first in range(0, images, block):
        k, v = keys[first : first + block], values[first : first + block]
        ids = tuple(str(image) for image in range(first, first + len(k)))
        layer = Layer(0, "planted", nn.Identity(), k, q=k, k=k, v=v, h=None, heads=numbers, ids=ids, seed=seed)
        totals.add([claim.observe(layer)], block_orders(seed, str(first), draws_for(heads), len(k)))
    results = totals.results()
    measured = results.statistics["linear_cka"]
    above = sum(unit.p_holm is not None and unit.p_holm <= thresholds.SIGNIFICANCE for unit in measured.units)
    assert measured.null is not None
    return Point(alpha, measured.estimate.value, measured.null.chance, above / heads, claim.verdict(results).outcome)


def _gaussian(shape: tuple[int, ...], seed: int, scope: str) -> Tensor:
    rng = generator(sample_key(seed, "power", scope))
    return torch.from_numpy(np.asarray(rng.standard_normal(shape)))


def measured(name: str, data: str, images: int, claims: list[str] | None) -> Diagnosis:
    model = load_model(name)
    samples = Samples.require(DataRequest(data, limit=images).load_for(model)).in_order()
    return diagnose(NamedModel(model, name, name), corrected(ImageSource(samples), claims))


def photographs(settings: argparse.Namespace) -> None:
    """Print the verdicts, and what they cost."""
    started = time.process_time()
    done = measured(settings.model, settings.data, settings.images, settings.claims)
    seconds = time.process_time() - started
    show([(judged.title, judged.outcome, judged.why) for judged in done.claims.values()], tables.VERDICTS)
    print(f"{settings.images} images: {done.seconds:.0f} s elapsed, {seconds:.0f} s of CPU; {peak():.0f} MB at most")


def bundled(settings: argparse.Namespace) -> None:
    """Print the verdicts and main numbers of every bundled model of the digits."""
    rows = []
    for name in (name for name in bundled_models() if "digits" in name):
        done = measured(name, "digits", settings.images, None)
        values, loss = (done.claims[claim].statistics for claim in ("value_vectors", "projection_loss"))
        alike, terms = values["linear_cka"], loss["log10_ratio"].estimate
        outcomes = [one.outcome for one in done.claims.values()]
        cka = f"{alike.estimate.value:.3f} ({alike.null.chance:.3f})" if alike.null else ""
        rows.append([name, cka, f"{terms.value:.2f}", *outcomes, f"{done.seconds:.1f}"])
    show(rows, ("model", "linear CKA (chance)", "log10 of mean ‖h‖² / mean ‖φ‖²", *CLAIMS.names(), "s"))


def power(settings: argparse.Namespace) -> None:
    """Print one row per alpha and standard deviation of the keys."""
    rows = [{"key_std": std, **asdict(point)} for std in settings.key_std for point in power_curve(ALPHAS, key_std=std)]
    if settings.csv is not None:
        with settings.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    print(tabulate(rows, "keys", tablefmt="github", floatfmt=".3f"), end="\n\n")


def chance(settings: argparse.Namespace) -> None:
    """Print the chance levels."""
    rows = [
        [one.pair, one.statistic, one.mean, one.deviation]
        for one in chance_levels(settings.tokens, settings.width, draws=settings.draws)
    ]
    print(tabulate(rows, tables.CHANCE, tablefmt="github", floatfmt=".3f"), end="\n\n")


def memory(settings: argparse.Namespace) -> None:
    """Print the peak memory of processes that differ only in the number of images."""
    for images in (10, 20, 40):
        own = ["--model", settings.model, "--data", settings.data, "--images", str(images)]
        command = [sys.executable, __file__, "photographs", *own]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        print(done.stdout.rstrip().splitlines()[-1], flush=True)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def show(rows: Sequence[Sequence[str]], head: tuple[str, ...]) -> None:
    print(tabulate(rows, head, tablefmt="github", disable_numparse=True), end="\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the kernel-PCA claims.")
    commands = parser.add_subparsers(required=True)
    for part in (photographs, memory):
        command = commands.add_parser(part.__name__)
        command.add_argument("--model", default="peers:deit_tiny")
        command.add_argument("--data", required=True)
        command.add_argument("--images", type=int, default=100)
        command.add_argument("--claims", nargs="+")
        command.set_defaults(part=part)
    command = commands.add_parser("bundled")
    command.add_argument("--images", type=int, default=20)
    command.set_defaults(part=bundled)
    command = commands.add_parser("power")
    command.add_argument("--key-std", type=float, nargs="+", default=[0.3, 0.6, 1.0])
    command.add_argument("--csv", type=Path)
    command.set_defaults(part=power)
    command = commands.add_parser("chance")
    for option, default in (("--tokens", 197), ("--width", 64), ("--draws", 20)):
        command.add_argument(option, type=int, default=default)
    command.set_defaults(part=chance)
    settings = parser.parse_args()
    print(header(("torch", "scipy")), end="\n\n")
    settings.part(settings)


if __name__ == "__main__":
    main()
