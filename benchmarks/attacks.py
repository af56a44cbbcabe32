"""Measure what attacks cost beside their own passes, and how much each reaches with how many.

- cost: each attack on a model that is never misclassified. The ratio is the time of the whole `evaluate` call over
  (passes x time of a pass): 1 means no overhead beyond the passes. Passes are all rows that the model was shown,
  counted at the model: also rows that fill up our batches, rows shown ahead of their turn, and our checks.
- curves: robust accuracy over passes, ours and the library's, as AttackBench draws it (Cinà et al. 2024,
  arXiv:2404.19460). Each image is attacked alone. Both sides are counted by one wrapper of the model, which ends the
  attack as soon as the model is shown an image inside the ball that it gets wrong, whatever the attack knows of it.

    python benchmarks/attacks.py cost [--repeats 3]
    python benchmarks/attacks.py curves --peers FILE [--images 48] [--only WORD ...] [--out FILE.json]
    python benchmarks/attacks.py draw FILE.json FILE.svg
"""

import argparse
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from _references import REFERENCE, foolbox, peer, reference_autoattack, torchattacks
from _shared import header
from tabulate import tabulate
from torch import Tensor, nn

from robustbench_kpca import evaluate, perturb
from robustbench_kpca._core.web.figures import INK, drawing, on_white, svg_of
from robustbench_kpca._engine.inference.mode import frozen
from robustbench_kpca.study.reproduction.measuring import interleaved

BATCH_SIZE = 32


@dataclass
class Shown:
    """Number of images that passed through a model."""

    forwards: int = 0
    backwards: int = 0


@contextmanager
def counted(model: nn.Module) -> Iterator[Shown]:
    """Count the images in forward and in backward passes of `model`."""
    shown = Shown()

    def back(gradient: Tensor) -> None:
        shown.backwards += len(gradient)

    def forth(_module: nn.Module, _inputs: Any, logits: Tensor) -> None:
        shown.forwards += len(logits)
        if logits.requires_grad:
            logits.register_hook(back)

    hook = model.register_forward_hook(forth)
    try:
        yield shown
    finally:
        hook.remove()


# ---- cost: against the time of the passes

COST: dict[str, tuple[str, dict[str, Any]]] = {
    "PGD-10": ("pgd20-linf-8_255", {"steps": 10}),
    "APGD-CE, 20 steps": ("apgd-ce-linf-8_255", {"steps": 20}),
    "Square, 60 queries": ("square-linf-8_255", {"queries": 60}),
    "SPSA, 64 samples": ("spsa-linf-8_255", {"steps": 1, "samples": 64}),
    # a large constant, so that the objective always falls: no early abort, and the batch stays full
    "C&W, 20 steps": ("cw-l2-128_255", {"steps": 20, "binary_steps": 1, "initial_const": 1e4}),
    "FAB-T, 2 targets, 10 steps": ("fab-t-linf-8_255", {"targets": 2, "steps": 10}),
    "FAB-T in L2": ("fab-t-linf-8_255", {"targets": 2, "steps": 10, "norm": "l2", "eps": 0.5}),
}
REFERENCE_PASSES = 5  # number of passes in a timed block


class Unbreakable(nn.Module):
    """DeiT-tiny for images of 64 x 64, whose logit of class 0 is raised by 50."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = timm.create_model("deit_tiny_patch16_224", img_size=64, num_classes=10)
        self.register_buffer("lead", 50 * (torch.arange(10) == 0).float())

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        logits: Tensor = self.inner(x) + self.lead
        return logits


def costs(arguments: argparse.Namespace) -> None:
    """Print the table of costs."""
    model = Unbreakable().eval()
    images, labels = torch.rand(BATCH_SIZE, 3, 64, 64), torch.zeros(BATCH_SIZE, dtype=torch.int64)

    def forwards() -> None:
        with torch.no_grad():
            for _ in range(REFERENCE_PASSES):
                model(images)

    def gradients() -> None:
        with frozen(model):
            for _ in range(REFERENCE_PASSES):
                x = images.clone().requires_grad_()
                torch.autograd.grad(nn.functional.cross_entropy(model(x), labels, reduction="sum"), x)

    rows = []
    for name, (protocol, overrides) in COST.items():

        def attack(protocol: str = protocol, overrides: dict[str, Any] = overrides) -> None:
            how: dict[str, Any] = {"batch_size": BATCH_SIZE, "allow": ["vanishing-loss"]}
            evaluate(model, images, labels, protocol=protocol, classes=10, **how, **overrides, audit=False)

        with counted(model) as shown:
            attack()
        forwards()
        gradients()
        times = interleaved((forwards, attack, gradients), arguments.repeats, time.process_time)
        batches = [rows / BATCH_SIZE / REFERENCE_PASSES for rows in (shown.forwards - shown.backwards, shown.backwards)]
        needed = [batches[0] * forth + batches[1] * both for forth, both in zip(times[0], times[2], strict=True)]
        ratios = [spent / need for spent, need in zip(times[1], needed, strict=True)]
        passes = [count / BATCH_SIZE for count in (shown.forwards, shown.backwards)]
        medians = [statistics.median(one) for one in (times[1], needed, ratios)]
        rows.append([name, *passes, *medians, min(ratios), max(ratios)])
    columns = {
        "attack": "", "forwards/image": ".0f", "backwards": ".0f", "CPU s": ".2f", "passes x time": ".2f",
        "ratio": ".3f", "least": ".3f", "most": ".3f",
    }  # fmt: skip
    print(tabulate(rows, [*columns], tablefmt="github", floatfmt=tuple(columns.values())))


# ---- curves: robust accuracy over passes

BUDGETS = (10, 30, 100, 300, 1000, 3000, 10_000)
NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "linf": lambda change: change.abs().amax((1, 2, 3)),
    "l2": lambda change: change.flatten(1).norm(dim=1),
    "l0": lambda change: (change != 0).any(1).flatten(1).sum(1),
}
RADII = {  # by network: such that none of the norms breaks all images or none
    "cifar10_robust": {"linf": 4 / 255, "l2": 0.5, "l0": 4},
    "cifar10_postnorm": {"linf": 1 / 255, "l2": 0.1, "l0": 2},
}


class Over(Exception):  # noqa: N818
    """The model was shown what breaks it, or as much as may be shown."""


class Watched(nn.Module):
    """Counts the rows of one image's attack, and ends it at the first that is in the ball and wrong, or at the last."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, norm: str, eps: float) -> None:
        super().__init__()
        self.model, self.x, self.y, self.norm, self.eps = model, x, y, norm, eps
        self.passes, self.broken = 0, False
        self.eval()

    def _count(self, gradient: Tensor) -> None:
        self.passes += len(gradient)

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        logits: Tensor = self.model(images)
        self.passes += len(images)
        inside = NORMS[self.norm](images.detach() - self.x) <= self.eps * (1 + 1e-5) + 1e-6
        inside &= ((images >= -1e-6) & (images <= 1 + 1e-6)).all(dim=(1, 2, 3))
        self.broken = bool((inside & (logits.argmax(1) != self.y)).any())
        if self.broken or self.passes > BUDGETS[-1]:
            raise Over
        if logits.requires_grad:
            logits.register_hook(self._count)
        return logits


@dataclass(frozen=True)
class Line:
    """A curve: a norm, our protocol with fields of it, and the library's attack at a radius; either may be missing."""

    norm: str
    protocol: str | None
    theirs: Callable[[float], REFERENCE] | None = None
    fields: dict[str, Any] = field(default_factory=dict)


def _authors(only: str | None, norm: str = "Linf") -> Callable[[float], REFERENCE]:
    return lambda eps: reference_autoattack(eps, only, norm=norm)


def _pgd(eps: float) -> REFERENCE:
    return torchattacks("PGD", eps=eps, alpha=eps / 4, steps=100, random_start=True)


def _square(eps: float) -> REFERENCE:
    return torchattacks("Square", norm="Linf", eps=eps, n_queries=5000, n_restarts=1, loss="margin")


def _foolbox(name: str, **options: Any) -> Callable[[float], REFERENCE]:
    return lambda eps: foolbox(eps, name, **options)


AUTOATTACK = "autoattack-linf-8_255"
LINES = {
    "PGD-100": Line("linf", "pgd20-linf-8_255", _pgd, {"steps": 100}),
    "APGD-CE": Line("linf", "apgd-ce-linf-8_255", _authors("apgd-ce")),
    "PMA": Line("linf", "pma-linf-8_255"),
    "APGD-T": Line("linf", "apgd-t-linf-8_255", _authors("apgd-t")),
    "MALT": Line("linf", "malt-linf-8_255"),
    "FAB-T": Line("linf", "fab-t-linf-8_255", _authors("fab-t")),
    "FMN": Line("linf", "fmn-linf-32_255", _foolbox("LInfFMNAttack", steps=100)),
    "Square": Line("linf", "square-linf-8_255", _square),
    "HopSkipJump": Line("linf", None, _foolbox("HopSkipJumpAttack", constraint="linf")),
    "autoattack-fast": Line("linf", "autoattack-fast-linf-8_255"),
    "AutoAttack": Line("linf", AUTOATTACK, _authors(None)),
    "APGD-CE, L2": Line("l2", "apgd-ce-linf-8_255", _authors("apgd-ce", "L2"), {"norm": "l2"}),
    "DDN": Line("l2", "ddn-l2-128_255", _foolbox("DDNAttack", steps=100)),
    "FMN, L2": Line("l2", "fmn-l2-2", _foolbox("L2FMNAttack", steps=100)),
    "HopSkipJump, L2": Line("l2", None, _foolbox("HopSkipJumpAttack", constraint="l2")),
    "sigma-zero": Line("l0", "l0-8:0"),
    "Sparse-RS": Line("l0", "l0-8:1"),
    "pixel-pairs": Line("l0", "pixel-pairs"),
}
COLOURS = (*(f"C{number}" for number in range(10)), INK)


def _stage(protocol: str, folder: str) -> str:
    """Return a file with one stage of a protocol of several: NAME:NUMBER."""
    name, _, number = protocol.partition(":")
    if not number:
        return protocol
    first, *stages = (Path(__file__).parents[1] / "attacks" / f"{name}.toml").read_text().split("[[stage]]")
    path = Path(folder, f"{name}-{number}.toml")
    path.write_text(f"{first}[[stage]]{stages[int(number)]}")
    return str(path)


def spent(line: Line, side: str, model: nn.Module, data: Sequence[Tensor], eps: float) -> list[float]:
    """Return the passes that broke each image, infinity where none did."""
    fields, protocol = {"eps": eps, **line.fields}, line.protocol or ""
    if side == "ours" and protocol.startswith("autoattack"):  # several stages: as evaluate counts them
        record = evaluate(model, *data, classes=10, protocol=protocol, audit=False, quiet=True, **fields)
        columns = (record.outcomes[name] for name in ("broken_by", "forwards", "backwards"))
        return [int(forth) + int(back) if by else torch.inf for by, forth, back in zip(*columns, strict=True)]
    passes = []
    with tempfile.TemporaryDirectory() as folder:
        for x, y in zip(*(part.split(1) for part in data), strict=True):
            watched = Watched(model, x, y, line.norm, eps)
            try:
                if side == "ours":
                    perturb(watched, x, y, _stage(protocol, folder), **fields)
                else:
                    assert line.theirs is not None
                    line.theirs(eps)(watched, x, y)
            except Over:
                pass
            passes.append(watched.passes if watched.broken else torch.inf)
    return passes


def curves(arguments: argparse.Namespace) -> None:
    """Print a table a network, and write the passes that broke each image."""
    measured: dict[str, dict[str, Any]] = {}
    for network, radii in RADII.items():
        model, *data = peer(arguments.peers, network)
        with torch.no_grad():
            right = torch.cat([model(x) for x in data[0][: arguments.images].split(BATCH_SIZE)]).argmax(1)
        kept = right == data[1][: arguments.images]
        attacked = tuple(part[: arguments.images][kept] for part in data)
        lines: dict[str, list[float | None]] = {}
        rows = []
        for name, line in LINES.items():
            if arguments.only and not any(word in name for word in arguments.only):
                continue
            for side, there in (("ours", line.protocol), ("theirs", line.theirs)):
                if there is not None:
                    passes = spent(line, side, model, attacked, radii[line.norm])
                    lines[f"{name}, {side}"] = [n if n < torch.inf else None for n in passes]
                    shares = [100 * sum(n > budget for n in passes) / len(kept) for budget in BUDGETS]
                    rows.append([name, line.norm, side, *shares])
                    print(network, *rows[-1], flush=True)
        columns = ["attack", "norm", "of", *(f"{budget:,}" for budget in BUDGETS)]
        radius = ", ".join(f"{norm} {eps:.4g}" for norm, eps in radii.items())
        print(f"\n{network} ({radius}), {len(kept)} images, {len(attacked[0])} classified correctly\n")
        print(tabulate(rows, columns, tablefmt="github", floatfmt=".1f") + "\n", flush=True)
        measured[network] = {"images": len(kept), "radii": radii, "passes": lines}
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(measured) + "\n")


def draw(arguments: argparse.Namespace) -> None:
    """Draw robust accuracy over passes: a row a network, a column a norm; ours solid, theirs dashed."""
    measured = json.loads(Path(arguments.passes).read_text())
    with drawing((11, 9)) as (figure, buffer):
        axes = figure.subplots(len(measured), len(NORMS), squeeze=False)
        for row, (network, of_network) in zip(axes, measured.items(), strict=True):
            images, lines = of_network["images"], of_network["passes"]
            for axis, norm in zip(row, NORMS, strict=True):
                attacks = [name for name, line in LINES.items() if line.norm == norm]
                for name, side in ((name, side) for name in attacks for side in ("ours", "theirs")):
                    passes = lines.get(f"{name}, {side}")
                    if passes is not None:
                        at = sorted(n for n in passes if n is not None and n <= BUDGETS[-1])
                        left = [100 * (len(passes) - k) / images for k in range(len(at) + 1)]
                        alone = side == "theirs" and f"{name}, ours" not in lines
                        axis.step(
                            [1, *at, BUDGETS[-1]], [*left, left[-1]], where="post",
                            label=f"{name}, theirs" if alone else name if side == "ours" else None,
                            color=COLOURS[attacks.index(name)], linestyle="-" if side == "ours" else "--",
                        )  # fmt: skip
                axis.set(xscale="log", ylim=(0, 75), xlabel="passes an image", ylabel="robust accuracy (%)")
                axis.set_title(f"{network}, {norm}, eps = {of_network['radii'][norm]:.2g}")
                axis.legend(fontsize="small", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)
    Path(arguments.picture).write_bytes(on_white(svg_of(buffer, "Robust accuracy over passes of attacks")))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what attacks cost, and what they reach with how many passes.")
    parts = parser.add_subparsers(required=True)
    cost = parts.add_parser("cost", help="the time of an attack over that of its passes")
    cost.add_argument("--repeats", type=int, default=3, help="timed runs of each; the median is shown")
    cost.set_defaults(part=costs)
    reached = parts.add_parser("curves", help="robust accuracy over passes, beside other libraries")
    reached.add_argument("--peers", required=True, help="a Python file of networks (_references.py)")
    reached.add_argument("--images", type=int, default=48)
    reached.add_argument("--only", nargs="+", default=[], help="attacks whose name contains a given word")
    reached.add_argument("--out", help="the file of the passes that broke each image")
    reached.set_defaults(part=curves)
    drawn = parts.add_parser("draw", help="a picture of what curves wrote")
    drawn.add_argument("passes", help="the file of curves --out")
    drawn.add_argument("picture", help="the file of the picture")
    drawn.set_defaults(part=draw)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("auto-attack").disabled = True
    print(header(("torch", "timm", "torchattacks", "foolbox", "pyautoattack", "numpy")) + "\n")
    arguments.part(arguments)


if __name__ == "__main__":
    main()
