"""The parts of `benchmarks/gpu.sh` that no other script has; each runs on any device.

- parity: the verdicts of the CPU and of the device, sample by sample, on the digits models.
- path: one risky way through the package (`PATHS`), on the CPU and on the device: seconds, and rows that differ by more
  than rounding.
- memory: what happens where memory runs out: the batch is halved until it fits, and the record says so (CUDA only).
- attacks: PGD and AutoAttack on a DeiT-Tiny and a ViT-B/16, ours against torchattacks and pyautoattack in one process:
  elapsed seconds, verdicts, peak memory. Weights are random without `--checkpoint`; labels are the model's own answers.
  The radius is one at which about half of the images are broken: where none is left, an attack that stops at success
  has little to do, and a comparison of seconds says nothing.
- syncs: how often an attack waits for the device, by `torch.cuda.set_sync_debug_mode` (CUDA only).
- batches: seconds a row of a gradient at every batch size, beside the size that is chosen.
- prices: what 1,000 images cost at most on a core and an H100, computed; `--write` puts it into docs/run_at_scale.md.
- counts: what a step of each attack asks of a device, counted on a stand-in (`_stand_in.py`); needs no GPU.

    python benchmarks/gpu.py parity [--device cuda] [--quick]
    python benchmarks/gpu.py path --case spsa [--quick]
    python benchmarks/gpu.py attacks [--model deit_tiny_patch16_224] [--checkpoint FILE] [--images 64] [--quick]
    python benchmarks/gpu.py batches [--quick]
    python benchmarks/gpu.py syncs
    python benchmarks/gpu.py prices [--write]
    python benchmarks/gpu.py counts
"""

import argparse
import logging
import re
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import timm
import torch
from _shared import header
from _stand_in import CASES, Load
from tabulate import tabulate
from torch import Tensor, nn

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.errors import EvaluationError
from robustbench_kpca._core.progress import spell
from robustbench_kpca._engine.attack_loop.passes import most_passes
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca._engine.inference.work import MOST, larger, memory_of, work_of
from robustbench_kpca.evaluation.execute import MEMORY, USUAL, estimates
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records.differences import differences
from robustbench_kpca.records.record import Record

STEPS = 20
ALLOW = ["vanishing-loss"]
MODELS = ("vit_digits_adv", "rpc_symvit_digits", "vit_digits")
PROTOCOLS = ("clean", "pgd20-linf-8_255", "apgd-ce-linf-8_255", "square-linf-8_255")
DIGITS: dict[str, Any] = {"model": "vit_digits_adv", "data": "digits", "eps": "18/255", "images": 64}
PATHS: dict[str, dict[str, Any]] = {
    "spsa": DIGITS | {"protocol": "spsa-linf-8_255", "images": 16},
    "l2": DIGITS | {"protocol": ["pgd20-l2-128_255", "cw-l2-128_255"], "eps": "1", "steps": 50, "images": 16},
    "fab": DIGITS | {"protocol": "fab-t-linf-8_255", "images": 32},
    "draws": DIGITS | {"protocol": "pgd20-linf-8_255", "draws": 4},
    "segmentation": {"model": "rpc_symvit_shapes", "data": "shapes", "protocol": "segpgd20-linf-8_255", "images": 16},
    "language": {"model": "rpc_lm_tiny", "data": "grammar", "protocol": "clean", "images": 64},
    "processes": DIGITS | {"protocol": "pgd20-linf-8_255", "executor": "processes", "processes": 2, "images": 256},
    "compiled": DIGITS | {"protocol": "pgd20-linf-8_255", "compile": "default"},
    "tf32": DIGITS | {"protocol": "pgd20-linf-8_255", "tf32": True},
}
"""Risky ways: what `evaluate` is asked, of so many samples. What is of the run is asked of the device only."""
WANTED = ("autoattack-linf-8_255", "autoattack-fast-linf-8_255", "pgd20-linf-8_255", "common-corruptions-19")
PRICED = {
    "vit_digits": ("vit_digits, 32", 32),
    "vit_cifar": ("vit_cifar, 32", 32),
    "vit_tiny_patch16_224": ("ViT-T, 224", 224),
    "vit_small_patch16_224": ("ViT-S, 224", 224),
    "vit_base_patch16_224": ("ViT-B, 224", 224),
}
OF_RUN = ("executor", "processes", "compile", "tf32")
QUICK: dict[str, Any] = {"img_size": 32, "patch_size": 16, "embed_dim": 48, "depth": 1, "num_heads": 3}


def synchronised(device: str) -> float:
    """Return the time after all work of the device."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def headline(record: Record) -> str:
    """Return the metric that a table shows: under an attack, what stands."""
    return max(record.metrics, key=lambda name: "robust" in name)


def parity(settings: argparse.Namespace) -> None:
    data = load_data("digits").in_order()
    data = data.take(range(0, len(data), 24 if settings.quick else 4))
    rows = []
    for name in MODELS[: 1 if settings.quick else None]:
        for protocol in PROTOCOLS[: 2 if settings.quick else None]:
            how: dict[str, Any] = {"protocol": protocol, "batch_size": 64}
            if protocol != "clean":
                how |= {"audit": False, "eps": "18/255"}
            if protocol.startswith("square"):
                how |= {"queries": 200}
            ours, theirs = (
                evaluate(load_model(name), data, device=device, **how) for device in ("cpu", settings.device)
            )
            column = "broken_by" if protocol != "clean" else "prediction"
            differ = int((ours.outcomes[column] != theirs.outcomes[column]).sum())
            metric = headline(ours)
            values = [100 * record.metrics[metric].value for record in (ours, theirs)]
            rows.append([name, protocol, len(data), *values, differ, theirs.environment.float32 or ""])
    head = ["model", "protocol", "images", "CPU (%)", f"{settings.device} (%)", "verdicts that differ", "float32"]
    print(tabulate(rows, head, tablefmt="github", floatfmt=".2f"))


def path(settings: argparse.Namespace) -> None:
    asked = dict(PATHS[settings.case])
    images, steps = asked.pop("images"), {"steps": 5} if settings.quick and settings.case != "language" else {}
    name, data = asked.pop("model"), load_data(asked.pop("data"), limit=4 if settings.quick else images)
    protocols, rows = asked.pop("protocol"), []
    for protocol in [protocols] if isinstance(protocols, str) else protocols:
        records, seconds = [], []
        for device, left_out in (("cpu", OF_RUN), (settings.device, ())):
            how = {key: value for key, value in asked.items() if key not in left_out} | steps
            started = synchronised(settings.device)
            records.append(evaluate(name, data, protocol=protocol, device=device, batch_size=64, audit=False, **how))
            seconds.append(synchronised(settings.device) - started)
        metric = headline(records[0])
        differ = differences(*(record.outcomes for record in records), exact=False)
        values = [record.metrics[metric].value for record in records]
        rows.append([name, protocol, len(data), metric, *values, len(differ), *seconds])
    head = ["model", "protocol", "samples", "metric", "CPU", settings.device, "rows that differ", "CPU, s", "s"]
    print(tabulate(rows, head, tablefmt="github", floatfmt=".4g"))


def memory(settings: argparse.Namespace) -> None:
    """Leave a model a twentieth of the memory, and ask for batches of 4,096, whose images alone take half of that."""
    if settings.device != "cuda":
        print("left out: only a CUDA device can be given less memory")
        return
    torch.cuda.set_per_process_memory_fraction(0.05)
    images, labels = torch.full((4096, 3, 224, 224), 0.5), torch.zeros(4096, dtype=torch.int64)
    how: dict[str, Any] = {"protocol": "clean", "batch_size": 4096, "device": "cuda", "allow": ALLOW}
    record = evaluate(network(settings), images, labels, classes=1000, **how)
    print("\n".join(["flags of the record:", *record.flags]))


def network(settings: argparse.Namespace) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(settings.model, **(QUICK if settings.quick else {}))
    if settings.checkpoint:
        timm.models.load_checkpoint(model, settings.checkpoint)
    return model.eval().requires_grad_(False).to(settings.device)


def radius(model: nn.Module, x: Tensor, y: Tensor, batch: int) -> float:
    """Return the radius in the max norm that breaks half of the images, to first order: margin / |its gradient|_1."""
    radii = []
    for a, b in zip(x.split(batch), y.split(batch), strict=True):
        shown = a.clone().requires_grad_()
        logits = model(shown)
        others = logits.scatter(1, b[:, None], -torch.inf).amax(1)
        margins = logits.gather(1, b[:, None])[:, 0] - others
        (slope,) = torch.autograd.grad(margins.sum(), shown)
        radii.append(margins.detach() / slope.abs().flatten(1).sum(1))
    return float(torch.cat(radii).median())


def torchattacks_pgd(model: nn.Module, x: Tensor, y: Tensor, batch: int, eps: float) -> Tensor:
    import torchattacks

    attack = torchattacks.PGD(model, eps=eps, alpha=eps / 4, steps=STEPS, random_start=True)
    pairs = zip(x.split(batch), y.split(batch), strict=True)
    with torch.enable_grad():
        return torch.cat([model(attack(a, b)).argmax(1) == b for a, b in pairs])


def pyautoattack(model: nn.Module, x: Tensor, y: Tensor, batch: int, eps: float) -> Tensor:
    import pyautoattack as library

    logging.getLogger("auto-attack").disabled = True
    attack = library.AutoAttack(model, norm="Linf", eps=eps, version="standard", seed=0, device=x.device)
    robust: Tensor = attack.run_standard_evaluation(x, y, batch_size=batch)[1] == y
    return robust


def attacks(settings: argparse.Namespace) -> None:
    model, count, batch = network(settings), settings.images, settings.batch_size
    if settings.quick:
        count = batch = 4
    side = 32 if settings.quick else 224
    images = torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = torch.cat([model(part.to(settings.device)).cpu() for part in images.split(batch)])
    labels, classes = logits.argmax(1), logits.shape[1]
    x, y = images.to(settings.device), labels.to(settings.device)

    eps = radius(model, x, y, batch) * (20 if settings.quick else 1)  # quick: nearly all are broken soon

    def ours(protocol: str, **more: Any) -> Callable[[], float]:
        how: dict[str, Any] = {"protocol": protocol, "eps": eps, "batch_size": batch, "device": settings.device}
        return lambda: (
            evaluate(model, images, labels, classes=classes, **how, **more, audit=False, allow=ALLOW)
            .metrics["robust_accuracy"]
            .value
        )

    def of_library(run: Callable[[nn.Module, Tensor, Tensor, int, float], Tensor]) -> Callable[[], float]:
        return lambda: float(run(model, x, y, batch, eps).float().mean())

    contenders = {
        "PGD-20, ours": ours("pgd20-linf-8_255"),
        "PGD-20, torchattacks": of_library(torchattacks_pgd),
        "PGD-20, ours, TF32": ours("pgd20-linf-8_255", tf32=True),
        "PGD-20, ours, compiled": ours("pgd20-linf-8_255", compile="reduce-overhead"),
        "AutoAttack, ours": ours("autoattack-linf-8_255"),
        "AutoAttack, pyautoattack": of_library(pyautoattack),
    }
    rows = []
    for name, run in contenders.items():
        if settings.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        try:
            started = synchronised(settings.device)
            robust = 100 * run()
            seconds = synchronised(settings.device) - started
        except Exception as error:  # noqa: BLE001 (one contender that fails leaves the others)
            rows.append([name, count, f"{type(error).__name__}: {str(error)[:60]}", None, None])
            continue
        peak = torch.cuda.max_memory_allocated() / 2**20 if settings.device == "cuda" else None
        rows.append([name, count, f"{robust:.2f}", seconds, peak])
        print(name, f"{seconds:.1f} s, robust {robust:.2f} %", flush=True)
    weights = "checkpoint" if settings.checkpoint else "random weights"
    print(f"\n{settings.model}, {weights}, batch {batch}, eps {255 * eps:.4f}/255\n")
    head = ["attack", "images", "robust acc. (%)", "elapsed s", "peak MiB"]
    print(tabulate(rows, head, tablefmt="github", floatfmt=".1f"))


def syncs(settings: argparse.Namespace) -> None:
    if settings.device != "cuda":
        print("left out: only a CUDA device tells when it is waited for")
        return
    data, rows = load_data("digits").in_order().take(range(64)), []
    model = load_model("vit_digits_adv").cuda()
    for protocol in PROTOCOLS[1:]:
        found = []
        for budget in (5, 25):
            field = "queries" if protocol.startswith("square") else "steps"
            how: dict[str, Any] = {"audit": False, "device": "cuda", field: budget}
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                try:
                    evaluate(model, data, protocol=protocol, batch_size=64, **how)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
            found.append(sum("synchroniz" in str(warning.message) for warning in caught))
        rows.append([protocol, *found, (found[1] - found[0]) / 20])
    print(tabulate(rows, ["attack", "budget 5", "budget 25", "synchronisations a step"], tablefmt="github"))


def batches(settings: argparse.Namespace) -> None:
    """Time a gradient at every batch size that can be chosen; `chosen`: for a device of this memory, or of 80 GB."""
    rows, sizes, device = [], [64 << doubled for doubled in range(1 if settings.quick else 7)], settings.device
    nets = {name: (load_model(name).to(device), 32) for name in ("vit_digits", "rpc_symvit_digits")}
    nets |= {} if settings.quick else {settings.model: (network(settings), 224)}
    for name, (model, side) in nets.items():
        work = work_of(Runner(model, 1, torch.device(device)), torch.full((1, 3, side, side), 0.5))
        chosen = larger(64, work, memory_of(torch.device(device)) or 80 * 10**9, MOST)
        row: list[Any] = [name, work.operators, work.operations / 1e9, chosen]
        for size in sizes:
            runner, times = Runner(model, size, torch.device(device)), []
            for _ in range(4):
                started = synchronised(device)
                with suppress(EvaluationError):
                    runner.gradient(torch.full((size, 3, side, side), 0.5, device=device), lambda logits: logits[:, 0])
                times.append(synchronised(device) - started)
            row.append(1e6 * min(times[1:]) / size if runner.batch_size == size else None)
            if row[-1] is None:
                break
        rows.append(row)
    head = ["model", "operators", "GFLOP a row", "chosen", *(f"us a row at {size}" for size in sizes)]
    print(tabulate(rows, head, tablefmt="github", floatfmt=".3g"))


def priced() -> str:
    """Return the table of `prices`."""
    rows = []
    for name, (title, side) in PRICED.items():
        runner = Runner(load_model(name, untrained=True), 1, torch.device("cpu"))
        work, row = work_of(runner, torch.full((1, 3, side, side), 0.5)), [title]
        row += [f"{work.operations / 1e9:.2g}", f"{larger(USUAL, work, MEMORY, 1000)}"]
        for protocol in WANTED:
            passes = most_passes(load_scenario(protocol)[1], 10 if side == 32 else 1000)
            assert passes is not None
            seconds = estimates(work, passes, 1000)
            row.append(f"{spell(seconds['CPU core'])} / {spell(seconds['H100'])}")
        rows.append(row)
    head = ["network, pixels", "GFLOP", "batch", "AutoAttack", "fast", "PGD-20", "19 x 5 corruptions"]
    return tabulate(rows, head, tablefmt="github", disable_numparse=True)


def prices(settings: argparse.Namespace) -> None:
    table, page = priced(), Path(__file__).parents[1] / "docs" / "run_at_scale.md"
    print(table)
    if settings.write:
        before, old, after = re.split(
            r"^(\| network, pixels.*?\n)(?!\|)", page.read_text(), flags=re.DOTALL | re.MULTILINE
        )
        assert old
        page.write_text(before + table + "\n" + after)


def counts(settings: argparse.Namespace) -> None:
    """Count what a usual step asks of a device: its median over the steps of a full batch that nothing breaks."""
    rows = []
    for name, case in CASES.items():
        row: list[Any] = [name]
        for side in (32,) if settings.quick else (32, 224):
            steps = case.loads(side)
            each = {one.name: [getattr(load, one.name) for load in steps] for one in fields(Load)}
            row += [statistics.median(values) for values in each.values()]
        rows.append(row)
    head = [
        "attack",
        *[f"{name}, {side} px" for side in (32, 224) for name in ("up, B", "down, B", "waits", "ops", "fp64")],
    ]
    print(tabulate(rows, head[: len(rows[0])], tablefmt="github", floatfmt=".0f", intfmt=","))


def main() -> None:
    parser = argparse.ArgumentParser(description="The parts of benchmarks/gpu.sh that no other script has.")
    parser.add_argument("part", choices=("parity", "path", "memory", "attacks", "batches", "syncs", "prices", "counts"))
    parser.add_argument("--case", choices=PATHS, default="spsa", help="of path")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="deit_tiny_patch16_224", help="timm's name")
    parser.add_argument("--checkpoint", help="file with the weights of --model; by default random weights")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see whether it works")
    parser.add_argument("--write", action="store_true", help="of prices")
    settings = parser.parse_args()
    print(header(("torch", "timm", "triton", "torchattacks", "pyautoattack")), settings.device, sep="; ", end="\n\n")
    parts = {"parity": parity, "path": path, "memory": memory, "attacks": attacks, "batches": batches, "syncs": syncs}
    (parts | {"prices": prices, "counts": counts})[settings.part](settings)


if __name__ == "__main__":
    main()
