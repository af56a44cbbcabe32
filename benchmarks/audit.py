"""Measure the audit: how many of 16 fakes it misses and how many honest models it flags, at three eps, quick and full.

A line is printed as soon as it is measured and kept in `--out`, so an interrupted measurement goes on. Then come both
error rates with Wilson's 95 % intervals, for a full audit and for a quick one (its checks are some of the full one's).
The whole list takes about twenty minutes of one core, with few images and few queries for the black boxes.

    RBK_DATA=FOLDER python benchmarks/audit.py [--images 16] [--only TEXT] [--eps 2/255]
    RBK_DATA=FOLDER python benchmarks/audit.py --check stairs --images 64

The second line asks one check alone, of every honest network at hand, at 8/255 or each `--eps`: two minutes for
`stairs`, which is asked of soft stairs of several heights and steepnesses, too; half an hour for `other-loss`.
`RBK_DATA` names the folder with `peers.py`, which defines networks of others on CIFAR-10 and ImageNet; without it, they
and the networks of the board cifar10 are left out.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from _shared import header
from tabulate import tabulate
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fakes import Fake
from safetensors import safe_open
from small_eps_fakes import BASE, FAKES, HONEST, PEERS, peers, stairs

from robustbench_kpca import attack, load_data, load_model
from robustbench_kpca._core.errors import BenchmarkError
from robustbench_kpca._core.strict import parse_fraction
from robustbench_kpca._engine.inference.runner import Runner, is_stochastic
from robustbench_kpca.audit.checks import CHECKS as QUESTIONS
from robustbench_kpca.audit.context import AuditContext
from robustbench_kpca.audit.preflight import CHECKS
from robustbench_kpca.audit.run import audit
from robustbench_kpca.models import bundled
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.records.audit_versions import CHECKS as LISTS
from robustbench_kpca.records.audit_versions import LATEST, samples_allowed
from robustbench_kpca.records.estimate import proportion
from robustbench_kpca.tasks import task_named

EPS = ("2/255", "4/255", "8/255")
SMALLEST = "1/255"  # for one check
FEWER = {
    "square": {"queries": 100},
    "spsa": {"steps": 4, "samples": 16},
    "noise": {"restarts": 3},
}
"""A third of the queries of a real audit: so what is missed here may be found there, but not the other way round."""


def stands(model: nn.Module, base: nn.Module, images: Tensor, labels: Tensor, eps: str) -> tuple[int, int]:
    """Count what PGD-20 leaves standing, and what is left once the base's adversarial images are shown, too."""
    try:
        broken = attack(model, images, labels, "pgd20-linf-8_255", eps=eps, allow=list(CHECKS)).broken
    except BenchmarkError:
        broken = torch.zeros(len(labels), dtype=torch.bool)
    claim = int((~broken).sum())
    shown = attack(base, images, labels, "apgd-ce-linf-8_255", eps=eps, steps=40).images
    with torch.no_grad():
        for x in (images, shown):
            broken = broken | (model(x).argmax(1) != labels)
    return claim, int((~broken).sum())


def planted(plant: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Plant a fake in the bundled network."""
    return plant(load_model(BASE))


def models(count: int) -> Iterator[tuple[str, str, Callable[[], nn.Module], Any]]:
    """Yield kind, name, how the model is made, and its data."""
    digits = load_data("digits", limit=count)
    for name, plant in FAKES.items():
        yield "fake", name, partial(planted, plant), digits
    for name, make in HONEST.items():
        yield "honest", name, make, digits
    others = peers()
    if others is None:
        print("RBK_DATA has no peers.py: the networks on CIFAR-10 are left out", file=sys.stderr)
        return
    images, labels = (part[:count] for part in others.cifar10("test_lossless"))
    for name in PEERS:
        yield "honest", name, getattr(others, name), (images, labels)


def measure(kind: str, name: str, model: nn.Module, data: Any, eps: str, count: int) -> dict[str, Any]:
    """Audit a model at one eps."""
    given = data if isinstance(data, tuple) else (data,)
    claim = truth = None
    if kind == "fake":
        images, labels = data.tensors()
        claim, truth = stands(model, load_model(BASE), images, labels, eps)
    done = audit(model, *given, eps=eps, batch_size=count)
    flags = [check.name for check in done.flags]
    return {"kind": kind, "name": name, "eps": eps, "claim": claim, "truth": truth, "flags": flags,
            "seconds": done.seconds}  # fmt: skip


def quick(row: dict[str, Any]) -> list[str]:
    """Return those flags that a quick audit would raise, too."""
    return [name for name in row["flags"] if name in LISTS[LATEST]["quick"]]


def rate(bad: list[bool]) -> str:
    """Return how many are bad, with an interval."""
    if not bad:
        return "none"
    found = proportion(sum(bad), len(bad))
    return f"{sum(bad)} of {len(bad)} ({100 * found.low:.0f}–{100 * found.high:.0f} %)"


def main() -> None:
    """Measure what is not yet in `--out`, then print the tables."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--images", type=int, default=16)
    asked.add_argument("--check", choices=QUESTIONS)
    asked.add_argument("--only", default="")
    asked.add_argument("--eps", choices=(SMALLEST, *EPS), action="append")
    asked.add_argument("--out", type=Path, default=Path("audit-measured.jsonl"))
    options = asked.parse_args()
    torch.set_num_threads(1)
    if options.check:
        for eps in options.eps or EPS[-1:]:
            report_check(options.check, eps, options.images)
        return
    attacks: Any = task_named("classification").compute.audit.attacks
    for name, few in FEWER.items():
        attacks[name] = (attacks[name][0], {**attacks[name][1], **few})
    kept = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.is_file() else []
    known = {(row["kind"], row["name"], row["eps"]) for row in kept}
    for eps in options.eps or EPS:
        for kind, name, make, data in models(options.images):
            if (kind, name, eps) in known or options.only not in name:
                continue
            row = measure(kind, name, make(), data, eps, options.images)
            kept.append(row)
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{kind}  {name}  {eps}  {row['claim']} ({row['truth']})  {', '.join(row['flags'])}", flush=True)
    report(kept, options.images)


LEVELS, STEEP = (4, 8, 16, 32), (5, 10, 20, 40, 80, 160, 320)
TRAININGS = Path(__file__).parents[1] / "leaderboards" / "cifar10" / "trainings"


def honest_networks(count: int, *, small: bool) -> Iterator[tuple[str, nn.Module, Any]]:
    """Yield name, network and images with labels of every honest network at hand, or of those of small pictures."""
    digits = task_named("classification").compute.audited(load_data("digits"), count).tensors()
    for name in (name for name in bundled() if "digits" in name):
        yield name, load_model(name), digits
    for name, make in HONEST.items():
        if name not in bundled():
            yield name, make(), digits
    others = peers()
    if others is None:
        return
    images, labels = others.cifar10("test_lossless")
    some = torch.linspace(0, len(labels) - 1, count).long()
    for name in PEERS:
        yield name, getattr(others, name)(), (images[some], labels[some])
    for file in sorted(TRAININGS.glob("*/*.safetensors")):
        yield file.stem, trained(file), (images[some], labels[some])
    if not small:
        yield "deit_tiny", others.deit_tiny(), others.imagenet(n=count)


def trained(file: Path) -> nn.Module:
    """Load a network of the board cifar10."""
    with safe_open(file, "pt") as opened:
        config = json.loads(opened.metadata()["config"])
    name, fixed = config.pop("name"), ("img_size", "patch_size", "num_classes")
    return load_model(name, checkpoint=file, **{key: value for key, value in config.items() if key not in fixed})


def ask(name: str, model: nn.Module, images: Tensor, labels: Tensor, eps: str) -> tuple[int, bool]:
    """Ask one check of a model: its worst count of images, and whether that is a flag."""
    runner, threat = Runner(model, min(len(labels), 64), torch.device("cpu")), Threat("linf", parse_fraction(eps))
    context = AuditContext(task_named("classification"), model, runner, images, labels, eps, threat, 0)
    check = QUESTIONS[name](context)
    return int(max(check.values.values(), default=0)), check.flag


def report_check(name: str, eps: str, count: int) -> None:
    """Print how many honest networks a check flags; of `stairs`, how many networks with soft stairs, too."""
    print(header(("torch", "robustbench-kpca")), f"{name} at {eps}", f"{count} images", sep="; ", flush=True)
    rows: list[dict[str, Any]] = []
    for network, model, (images, labels) in honest_networks(count, small=name != "stairs"):
        if not is_stochastic(model):
            found, flag = ask(name, model, images, labels, eps)
            rows.append({"name": network, "found": found, "of": len(labels), "flag": flag})
            print(f"honest  {network}  {found} of {len(labels)}{'  FLAG' * flag}", flush=True)
    print(f"honest networks flagged: {rate([row['flag'] for row in rows])}; images counted: "
          f"{sum(row['found'] for row in rows)} of {sum(row['of'] for row in rows)}, at most "
          f"{max(row['found'] for row in rows)} of a network")  # fmt: skip
    if name == "stairs":
        report_soft_stairs(eps, count)


def report_soft_stairs(eps: str, count: int) -> None:
    """Print on how many networks soft stairs are flagged, by height and steepness."""
    bases = [(model, given) for name, model, given in honest_networks(count, small=True) if name in SOFTENED]
    table = []
    for levels in LEVELS:
        softened = ([(Fake(model, **stairs(levels, steep)), given) for model, given in bases] for steep in STEEP)
        found = [sum(ask("stairs", model, x, y, eps)[1] for model, (x, y) in several) for several in softened]
        table.append([levels, *(f"{flags} of {len(bases)}" for flags in found)])
    print(tabulate(table, headers=["levels", *(f"steepness {steep}" for steep in STEEP)], tablefmt="github"))


SOFTENED = ("vit_digits", "rpc_symvit_digits", "symvit_digits_adv", "cifar10_robust", "cifar10_vit_d64",
            "symvit_cifar_fast-s1", "rpc_symvit_cifar_fast_adv-s1")  # fmt: skip
"""The networks on which soft stairs are planted."""


def report(rows: list[dict[str, Any]], count: int) -> None:
    """Print what was found on each fake and each honest model, and both error rates."""
    print(header(("torch", "robustbench-kpca")), f"{count} images", sep="; ")
    fakes, honest = ([row for row in rows if row["kind"] == kind] for kind in ("fake", "honest"))
    for group in (fakes, honest):
        names = dict.fromkeys(row["name"] for row in group)
        cells = {(row["name"], row["eps"]): shown(row) for row in group}
        table = [[name, *(cells.get((name, eps), "") for eps in EPS)] for name in names]
        print(tabulate(table, headers=[group[0]["kind"] if group else "", *EPS], tablefmt="github"), end="\n\n")
    hide = [row for row in fakes if row["claim"] - row["truth"] > samples_allowed(count)]
    levels: dict[str, Callable[[dict[str, Any]], list[str]]] = {"full": itemgetter("flags"), "quick": quick}
    errors = []
    for level, flags in levels.items():
        missed = [rate([not flags(row) for row in group]) for group in (fakes, hide)]
        errors.append([level, *missed, rate([bool(flags(row)) for row in honest])])
    heads = ["audit", "fakes missed", "of those that hide images", "honest models flagged"]
    print(tabulate(errors, headers=heads, tablefmt="github"))


def shown(row: dict[str, Any]) -> str:
    """Return a cell: what stands under PGD-20 (and in truth at most), and the flags, those of a quick audit in bold."""
    bold = {*quick(row)}
    flags = ", ".join(f"**{name}**" if name in bold else name for name in row["flags"]) or "—"
    return flags if row["claim"] is None else f"{row['claim']} ({row['truth']}): {flags}"


if __name__ == "__main__":
    main()
