"""Compare one batch and one call with what people used before: one table, of networks and images of others.

Every row runs theirs and ours in turn in one process on one thread; times are CPU seconds of the thread, medians after
a run of each that is not timed, but of AutoAttack a single run. Verdicts that differ are those of images that only one
of both leaves robust. `evaluate` is called without an audit.

    python benchmarks/speed.py --peers peers.py [--images 64 256 1024] [--repeats 5] [--only WORD ...]
"""

import argparse
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from _references import REFERENCE, foolbox, peer, reference_autoattack, torchattacks
from _shared import header
from tabulate import tabulate
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from corruptions import ours as exact
from corruptions import photographs
from corruptions import theirs as library
from robustbench_kpca import attack, evaluate, perturb
from robustbench_kpca._engine.inference import patch_gradients
from robustbench_kpca._engine.inference.mode import frozen
from robustbench_kpca.study.reproduction.measuring import interleaved

BATCH = 64
EPS = 2 / 255


@dataclass(frozen=True)
class Row:
    """A line of the table: a protocol with fields of it, the library's attack, and what is called."""

    protocol: str
    theirs: REFERENCE
    fields: dict[str, Any] = field(default_factory=dict)
    call: str = "evaluate"
    images: int = 10**9  # more are not shown
    once: bool = False


def _pgd(steps: int) -> tuple[REFERENCE, dict[str, Any]]:
    theirs = torchattacks("PGD", eps=EPS, alpha=EPS / 4, steps=steps, random_start=True)
    return theirs, {"eps": "2/255", "steps": steps, "step_size": "0.5/255"}


FGSM = "fgsm-linf-8_255", torchattacks("FGSM", eps=EPS), {"eps": "2/255"}
CE = "apgd-ce-linf-8_255"
ROWS = {
    "APGD-CE, 1/255": Row(CE, reference_autoattack(1 / 255, "apgd-ce"), {"eps": "1/255"}),
    "APGD-CE, 2/255": Row(CE, reference_autoattack(EPS, "apgd-ce"), {"eps": "2/255"}),
    "APGD-L2, 0.25": Row(CE, reference_autoattack(0.25, "apgd-ce", norm="L2"), {"norm": "l2", "eps": 0.25}),
    "FAB, untargeted, 2/255": Row(
        "fab-t-linf-8_255",
        torchattacks("FAB", norm="Linf", eps=EPS, steps=20, n_classes=10),
        {"eps": "2/255", "targets": 0, "steps": 20},
    ),
    "DDN-100, L2 0.25": Row("ddn-l2-128_255", foolbox(0.25, "DDNAttack", steps=100), {"eps": 0.25}),
    "Square-500, 2/255": Row(
        "square-linf-8_255",
        torchattacks("Square", norm="Linf", eps=EPS, n_queries=500, n_restarts=1, loss="margin"),
        {"eps": "2/255", "queries": 500},
        images=256,
    ),
    "AutoAttack, 2/255": Row(
        "autoattack-linf-8_255", reference_autoattack(EPS), {"eps": "2/255"}, images=BATCH, once=True
    ),
    "`evaluate` PGD-20": Row("pgd20-linf-8_255", *_pgd(20)),
    "`evaluate` FGSM": Row(*FGSM),
    "`attack` FGSM": Row(*FGSM, call="attack"),
    "`attack` PGD-7": Row("pgd20-linf-8_255", *_pgd(7), call="attack"),
}


def robust(row: Row, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Tell which images ours leaves robust."""
    how: dict[str, Any] = {"batch_size": BATCH, **row.fields}
    if row.call == "attack":
        return ~attack(model, x, y, row.protocol, **how).broken
    record = evaluate(model, x, y, classes=10, protocol=row.protocol, audit=False, quiet=True, **how)
    kept = dict(zip(record.outcomes["sample"], record.outcomes["broken_by"] == "", strict=True))
    return torch.tensor([kept[name] for name in sorted(kept, key=int)])


def timed(contenders: Sequence[Callable[[], object]], repeats: int, *, once: bool = False) -> list[float]:
    """Return the median seconds of theirs and of ours, after a run of each that is not timed; `once`: of one run."""
    if not once:
        interleaved(contenders, 1, time.thread_time)
    return [statistics.median(own) for own in interleaved(contenders, 1 if once else repeats, time.thread_time)]


def duels(name: str, row: Row, model: nn.Module, data: Sequence[Tensor], sizes: list[int], repeats: int) -> Any:
    for n in sizes:
        if n <= row.images:
            x, y = (part[:n] for part in data)
            verdicts: list[Tensor] = [y, y]
            contenders = [partial(row.theirs, model, x, y), partial(robust, row, model, x, y)]
            runs = [partial(_keep, verdicts, at, judged) for at, judged in enumerate(contenders)]
            theirs, ours = timed(runs, repeats, once=row.once)
            yield [name, n, theirs, ours, theirs / ours, int((verdicts[0] != verdicts[1]).sum())]


def _keep(verdicts: list[Tensor], at: int, judged: Callable[[], Tensor]) -> None:
    verdicts[at] = judged()


def loops(model: nn.Module, data: Sequence[Tensor], repeats: int) -> Any:
    import torchattacks as package

    x, y = (part[:BATCH] for part in data)
    pgd = package.PGD(model, eps=EPS, alpha=EPS / 4, steps=7)
    for name, other, protocol, fields in (
        ("FGSM", package.FGSM(model, eps=EPS), "fgsm-linf-8_255", {"eps": "2/255"}),
        ("PGD-7", pgd, "pgd20-linf-8_255", _pgd(7)[1]),
    ):
        theirs, ours = timed([partial(other, x, y), partial(perturb, model, x, y, protocol, **fields)], repeats)
        yield [f"`perturb` {name}", BATCH, theirs, ours, theirs / ours, None]


def products(peers: str, repeats: int) -> Any:
    """Compare gradients through patches as torch takes them with products (decision 22); how many numbers differ."""
    for name in ("cifar10_robust", "cifar10_postnorm", "cifar10_vit_d64"):
        model, x, y = peer(peers, name)
        given = model, x[:BATCH].contiguous(), y[:BATCH]
        yield _product(
            f"{name}, its gradient", BATCH, [partial(_gradient, *given), partial(_by_product, *given)], repeats
        )
    for rows, channels, side, patch, features in (
        (64, 3, 32, 16, 48), (64, 3, 32, 4, 128), (8, 3, 224, 16, 192), (2, 3, 224, 16, 768), (64, 1, 8, 2, 64)
    ):  # fmt: skip
        x, weight = torch.rand(rows, channels, side, side), torch.randn(features, channels, patch, patch)
        g = torch.randn(rows, features, side // patch, side // patch)
        usual = partial(conv2d_input, x.shape, weight, g, stride=patch)
        name = f"{channels} x {side}, patch {patch}, {features} features"
        yield _product(name, rows, [usual, partial(patch_gradients.product, g, weight, x)], repeats)


def _product(name: str, images: int, both: Sequence[Callable[[], Tensor]], repeats: int) -> list[Any]:
    theirs, ours = timed([partial(_all, [one] * 20) for one in both], repeats)
    return [f"20 x {name}", images, theirs, ours, theirs / ours, int((both[0]() != both[1]()).sum())]


def _gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with frozen(model):
        image = x.clone().requires_grad_()
        return torch.autograd.grad(nn.functional.cross_entropy(model(image), y), image)[0]


def _by_product(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with patch_gradients.PatchGradients():
        return _gradient(model, x, y)


def corruptions(repeats: int) -> Any:
    pictures = photographs(4, 224)
    for name in ("gaussian_noise", "pixelate", "jpeg_compression"):
        cells = [(name, severity, pictures) for severity in range(1, 6)]
        both = [[library(*cell) for cell in cells], [exact("exact", *cell) for cell in cells]]
        theirs, ours = timed([partial(_all, each) for each in both], 3 * repeats)
        yield [f"{name}, exact, 224 px", 20, theirs, ours, theirs / ours, None]


def _all(runs: Sequence[Callable[[], object]]) -> None:
    for run in runs:
        run()


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare one batch and one call with other libraries.")
    parser.add_argument("--peers", required=True, help="a Python file of networks (_references.py)")
    parser.add_argument("--images", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[], help="rows whose name contains a given word")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("auto-attack").disabled = True
    model, *data = peer(arguments.peers)
    print(header(("torch", "torchattacks", "foolbox", "pyautoattack", "imagecorruptions", "numpy")))
    sources: dict[str, Callable[[], Any]] = {
        name: partial(duels, name, row, model, data, arguments.images, arguments.repeats) for name, row in ROWS.items()
    }
    sources["perturb"] = partial(loops, model, data, arguments.repeats)
    sources["products"] = partial(products, arguments.peers, arguments.repeats)
    sources["corruptions"] = partial(corruptions, arguments.repeats)
    rows = []
    for name, source in sources.items():
        if not arguments.only or any(word in name for word in arguments.only):
            for row in source():
                print(*row, flush=True)
                rows.append(row)
    columns = ("work", "images", "theirs, s", "ours, s", "theirs / ours", "verdicts differing")
    print("\n" + tabulate(rows, columns, tablefmt="github", floatfmt=("", "", ".3f", ".3f", ".2f", "")))


if __name__ == "__main__":
    main()
