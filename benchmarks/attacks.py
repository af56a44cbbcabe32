"""Compare our attack engine with torchattacks, foolbox, the reference AutoAttack, and the time of its own passes.

Three tables, all measured in one process; times are process CPU time, medians of interleaved runs.

- cost: each attack on a model that is never misclassified. The ratio is the time of the whole `evaluate` call over
  (passes x time of a pass): 1 means no overhead beyond the passes.
- versus: the same model, images and settings, ours and the library's, both called as users do: `evaluate`, with
  digests, checks and the record, and the library's attack plus the passes that classify its result (the reference
  AutoAttack does this itself). Parameters require gradients, as after loading.
- loops: FGSM and PGD-7 of a batch of 64 as in a training loop: torchattacks, and `perturb`, which like it returns
  images alone. Each in the mode that the network is in.

Rows shown are all images that the model processed, counted at the model: including empty rows of our batches, rows
shown ahead of their turn, our checks of the first images, and the checks of the reference AutoAttack. Rows needed are
the passes of the record: what the same search would have spent one image at a time, and one pass of each clean image.

Rows of `peer` are on a network that this project did not train, and images that it did not make: `--peers FILE` names
a Python file with `cifar10_robust()`, which returns a model of images in [0, 1], and `cifar10(PART)`, which returns
images and labels. Without it they are left out.

    python benchmarks/attacks.py [--only cost] [--images 16] [--repeats 3] [--threads 1] [--peers FILE]
"""

import argparse
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from typing import Any

import timm
import torch
from _shared import cpu_times, header, interleaved
from tabulate import tabulate
from torch import Tensor, nn

from robustbench_kpca import evaluate, load_data, load_model, perturb
from robustbench_kpca._engine.inference.mode import frozen
from robustbench_kpca.data.samples import Samples

BATCH_SIZE = 32
DUEL_BATCH_SIZE = 64  # of ours and of torchattacks: the default of `evaluate`
REFERENCE_BATCH_SIZE = 128  # of the reference AutoAttack, whose time depends little on it
REFERENCE = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Maps (model, images, labels) to a boolean per image: whether the model is robust."""


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


def costs(names: list[str], repeats: int) -> list[list[Any]]:
    """Measure the given rows of the first table."""
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
    for name in names:
        protocol, overrides = COST[name]

        def attack(protocol: str = protocol, overrides: dict[str, Any] = overrides) -> None:
            how: dict[str, Any] = {"batch_size": BATCH_SIZE, "allow": ["vanishing-loss"]}
            evaluate(model, images, labels, protocol=protocol, classes=10, **how, **overrides, audit=False)

        with counted(model) as shown:
            attack()
        forwards()
        gradients()
        times = interleaved((forwards, attack, gradients), repeats, time.process_time)
        batches = [rows / BATCH_SIZE / REFERENCE_PASSES for rows in (shown.forwards - shown.backwards, shown.backwards)]
        needed = [batches[0] * forth + batches[1] * both for forth, both in zip(times[0], times[2], strict=True)]
        ratios = [spent / need for spent, need in zip(times[1], needed, strict=True)]
        passes = [count / BATCH_SIZE for count in (shown.forwards, shown.backwards)]
        medians = [statistics.median(one) for one in (times[1], needed, ratios)]
        rows.append([name, *passes, *medians, min(ratios), max(ratios)])
    return rows


# ---- versus: against torchattacks and the reference AutoAttack


def correct(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(images)
    return logits.argmax(1) == labels


def torchattacks(name: str, reach: float | None = None, **options: Any) -> REFERENCE:
    """Attack with torchattacks and classify the results; with `reach`, images beyond that L2 distance do not count."""

    def run(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        import torchattacks as library  # type: ignore[import-untyped]

        torch.manual_seed(0)
        attacker, robust = getattr(library, name)(model, **options), []
        for x, y in zip(images.split(DUEL_BATCH_SIZE), labels.split(DUEL_BATCH_SIZE), strict=True):
            attacked = attacker(x, y)
            far = (attacked - x).flatten(1).norm(dim=1) > (torch.inf if reach is None else reach)
            robust.append(correct(model, x, y) & (correct(model, attacked, y) | far))
        return torch.cat(robust)

    return run


def foolbox(reach: float, name: str = "L2CarliniWagnerAttack", **options: Any) -> REFERENCE:
    """Run an attack of foolbox; images beyond an L2 distance of `reach` do not count."""

    def run(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        import foolbox as library

        attack, robust = getattr(library.attacks, name)(**options), []
        for x, y in zip(images.split(DUEL_BATCH_SIZE), labels.split(DUEL_BATCH_SIZE), strict=True):
            *_, broken = attack(library.PyTorchModel(model, bounds=(0, 1)), x, y, epsilons=[reach])
            robust.append(correct(model, x, y) & ~broken[0])
        return torch.cat(robust)

    return run


def reference_autoattack(eps: float, only: str | None = None, norm: str = "Linf") -> REFERENCE:
    """Run the authors' ensemble, or one of its attacks with its settings there."""

    def run(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        import pyautoattack as library  # type: ignore[import-untyped]

        attack = library.AutoAttack(model, norm=norm, eps=eps, version="standard", seed=0)
        attack.attacks_to_run = attack.attacks_to_run if only is None else [only]
        _, answers = attack.run_standard_evaluation(images, labels, batch_size=REFERENCE_BATCH_SIZE)
        robust: Tensor = answers == labels
        return robust

    return run


@dataclass(frozen=True)
class Duel:
    """A row of the second table. `few`: a slow row, run only on `--images` images, and not warmed up."""

    model: str
    protocol: str
    reference: REFERENCE
    overrides: dict[str, Any] = field(default_factory=dict)
    few: bool = False
    batch_size: int = DUEL_BATCH_SIZE


def _pgd(model: str, eps: int) -> Duel:
    reference = torchattacks("PGD", eps=eps / 255, alpha=eps / 255 / 4, steps=40, random_start=True)
    return Duel(model, "pgd20-linf-8_255", reference, {"eps": f"{eps}/255", "steps": 40})


def _ensemble(model: str, eps: int, protocol: str, only: str | None = None, *, few: bool) -> Duel:
    return Duel(model, protocol, reference_autoattack(eps / 255, only), {"eps": f"{eps}/255"}, few)


STANDARD, ROBUST, PEER = "vit_digits", "vit_digits_adv", "peer"
PARTS = {"APGD-CE": "apgd-ce", "APGD-T": "apgd-t", "FAB-T": "fab-t", "Square": "square"}
VERSUS = {
    "AutoAttack, 12/255, standard": _ensemble(STANDARD, 12, "autoattack-linf-8_255", few=False),
    "PGD-40, 12/255, standard": _pgd(STANDARD, 12),
    "PGD-40, 18/255, robust": _pgd(ROBUST, 18),
    "PGD-40, 8/255, robust": _pgd(ROBUST, 8),
    "C&W, 50 steps, robust": Duel(
        ROBUST,
        "cw-l2-128_255",
        torchattacks("CW", reach=0.5, c=1, steps=50, lr=0.01),
        {"eps": 0.5, "policy": "strongest", "steps": 50, "lr": 0.01, "binary_steps": 1, "initial_const": 1.0},
    ),
    "C&W, 5 searches of 1,000 steps, robust": Duel(
        ROBUST,
        "cw-l2-128_255",
        foolbox(128 / 255, binary_search_steps=5, steps=1000, stepsize=0.005, initial_const=0.01),
        few=True,
    ),
    **{
        f"{name}, 8/255, robust": _ensemble(ROBUST, 8, f"{part}-linf-8_255", part, few=True)
        for name, part in PARTS.items()
    },
    "AutoAttack, 8/255, robust": _ensemble(ROBUST, 8, "autoattack-linf-8_255", few=True),
    "FGSM, 8/255, robust": Duel(ROBUST, "fgsm-linf-8_255", torchattacks("FGSM", eps=8 / 255)),
    "APGD-L2, 0.5, robust": Duel(
        ROBUST, "apgd-ce-linf-8_255", reference_autoattack(0.5, "apgd-ce", norm="L2"), {"norm": "l2", "eps": 0.5}
    ),
    "FGSM, 2/255, peer": Duel(PEER, "fgsm-linf-8_255", torchattacks("FGSM", eps=2 / 255), {"eps": "2/255"}),
    "APGD-L2, 0.25, peer": Duel(
        PEER, "apgd-ce-linf-8_255", reference_autoattack(0.25, "apgd-ce", norm="L2"), {"norm": "l2", "eps": 0.25}
    ),
    "PGD-40, 2/255, peer": _pgd(PEER, 2),
    "FAB, untargeted, 2/255, peer": Duel(
        PEER,
        "fab-t-linf-8_255",
        torchattacks("FAB", norm="Linf", eps=2 / 255, steps=20, n_classes=10),
        {"eps": "2/255", "targets": 0, "steps": 20},
        few=True,
    ),
    "AutoAttack, 2/255, peer": _ensemble(PEER, 2, "autoattack-linf-8_255", few=True),
}


@cache
def peer(path: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the network of a file of peers, with all images and labels."""
    spec = spec_from_file_location("peers", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    images, labels = module.cifar10("test_jpeg")
    return module.cifar10_robust(), images.contiguous(), labels


def subset(count: int | None) -> Samples:
    """Return the first digits, or all."""
    samples = load_data("digits").in_order()
    return samples if count is None else samples.take(range(min(count, len(samples))))


def duel(name: str, images: int, repeats: int, peers: str) -> list[Any]:
    """Measure one row of the second table."""
    row = VERSUS[name]
    if row.model == PEER:
        model, x, y = peer(peers)
        x, y = x[:images], y[:images]
    else:
        model = load_model(row.model)
        x, y = subset(images if row.few else None).tensors()
    batch_size = min(row.batch_size, len(x))
    verdicts: list[float] = [0.0, 0.0]
    needed = [0, 0]

    def ours() -> None:
        how: dict[str, Any] = {"protocol": row.protocol, "batch_size": batch_size}
        record = evaluate(model, x, y, classes=10, **how, **row.overrides, audit=False)
        verdicts[0] = record.metrics["robust_accuracy"].value
        needed[:] = record.passes.forwards, record.passes.backwards

    def theirs() -> None:
        verdicts[1] = float(row.reference(model, x, y).float().mean())

    shown = [Shown(), Shown()]

    def watched(which: int, contender: Callable[[], None]) -> None:
        with counted(model) as shown[which]:
            contender()

    contenders = [lambda: watched(0, ours), lambda: watched(1, theirs)]
    if not row.few:
        interleaved(contenders, 1, time.process_time)  # to warm up; negligible for slow rows
    times = [statistics.median(own) for own in interleaved(contenders, repeats, time.process_time)]
    forwards, backwards = ([getattr(one, kind) / len(x) for one in shown] for kind in ("forwards", "backwards"))
    per_pass = [1e3 * seconds / max(one.backwards, 1) for seconds, one in zip(times, shown, strict=True)]
    return [
        name, len(x), *(100 * verdict for verdict in verdicts),
        needed[0] / len(x), *forwards, needed[1] / len(x), *backwards,
        (shown[0].forwards + shown[0].backwards) / sum(needed),
        *times, times[1] / times[0], per_pass[1] / per_pass[0] if row.protocol.startswith("cw") else None,
    ]  # fmt: skip


COST_COLUMNS = {
    "attack": "", "forwards/image": ".0f", "backwards": ".0f", "CPU s": ".2f", "passes x time": ".2f",
    "ratio": ".3f", "least": ".3f", "most": ".3f",
}  # fmt: skip
VERSUS_COLUMNS = {
    "attack, model": "", "images": "", "robust acc. (%), ours": ".2f", "theirs": ".2f",
    "forwards/image, needed": ".1f", "shown": ".1f", "theirs ": ".1f",
    "backwards/image, needed": ".1f", " shown": ".1f", " theirs": ".1f", "shown / needed": ".2f",
    "CPU s, ours": ".2f", " theirs ": ".2f", "theirs / ours": ".2f", "a pass, theirs / ours": ".2f",
}  # fmt: skip

# ---- loops: inside training loops


def _transformer() -> nn.Module:
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=4, depth=4, embed_dim=64, num_heads=4, num_classes=10
    )


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


NETWORKS = {"transformer": _transformer, "convolutional": _convolutional}
LOOPS_COLUMNS = {
    "network": "", "mode": "", "attack": "", "torchattacks, ms": ".1f", "perturb, ms": ".1f", "theirs / ours": ".2f",
}  # fmt: skip


def loops(network: str, *, training: bool, repeats: int) -> Iterator[list[Any]]:
    """Measure rows of the table of loops; of labels that are the network's own answers."""
    import torchattacks as library

    torch.manual_seed(0)
    model, x = NETWORKS[network]().eval(), torch.rand(64, 3, 32, 32)
    with torch.no_grad():
        y = model(x).argmax(1)
    model.train(training)
    pairs: dict[str, tuple[Any, dict[str, Any]]] = {
        "FGSM": (library.FGSM(model, eps=8 / 255), {"protocol": "fgsm-linf-8_255"}),
        "PGD-7": (
            library.PGD(model, eps=8 / 255, alpha=2 / 255, steps=7),
            {"protocol": "pgd20-linf-8_255", "steps": 7, "step_size": "2/255"},
        ),
    }
    for name, (peer, how) in pairs.items():
        peer.set_model_training_mode(training, training, training)
        contenders: list[Callable[[], object]] = [partial(peer, x, y), partial(perturb, model, x, y, **how)]
        for contender in contenders:
            contender()
        theirs, ours = (1000 * seconds for seconds in cpu_times(contenders, repeats))
        yield [network, "training" if training else "evaluation", name, theirs, ours, theirs / ours]


def show(title: str, rows: list[list[Any]], columns: dict[str, str]) -> None:
    """Print a table; `columns` are headers with formats."""
    table = tabulate(rows, [*columns], tablefmt="github", floatfmt=tuple(columns.values()))
    print(f"\n{title}\n\n{table}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Compare our attack engine with torchattacks, foolbox and the reference AutoAttack."
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        help="tables (cost, versus, loops), or rows whose name contains a given word",
    )
    parser.add_argument(
        "--images", type=int, default=16, help="number of images for the slow rows; the others use all 364"
    )
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each; the median is shown")
    parser.add_argument("--peers", default="", help="a Python file for the rows of 'peer'")
    parser.add_argument("--threads", type=int, default=1, help="number of torch threads")
    arguments = parser.parse_args()
    for package in ("torchattacks", "foolbox", "pyautoattack"):
        if find_spec(package) is None:
            parser.exit(2, f"{package} is missing: pip install '.[reference]'\n")
    torch.set_num_threads(arguments.threads)
    logging.getLogger("auto-attack").disabled = True
    print(header(("torch", "timm", "torchattacks", "foolbox", "pyautoattack", "numpy")))

    def wanted(table: str, name: str) -> bool:
        known = bool(arguments.peers) or PEER not in name
        return known and (not arguments.only or any(word == table or word in name for word in arguments.only))

    images, repeats = arguments.images, arguments.repeats
    if chosen := [name for name in COST if wanted("cost", name)]:
        show("Cost: 1 is the time of the passes alone", costs(chosen, repeats), COST_COLUMNS)
    if chosen := [name for name in VERSUS if wanted("versus", name)]:
        rows = [duel(name, images, repeats, arguments.peers) for name in chosen]
        show("Versus: torchattacks (PGD, C&W), foolbox (C&W) and the reference AutoAttack", rows, VERSUS_COLUMNS)
    if wanted("loops", "loops"):
        modes = [(name, training) for name in NETWORKS for training in (False, True)]
        rows = [row for name, training in modes for row in loops(name, training=training, repeats=repeats)]
        show("Loops: a batch of 64 images", rows, LOOPS_COLUMNS)


if __name__ == "__main__":
    main()
