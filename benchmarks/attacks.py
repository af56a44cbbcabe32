"""Our attack engine against torchattacks: the same models, images and settings, in one process.

Measured for each: robust accuracy, forward and backward passes per image, and process CPU time (the median of
interleaved runs, after one run that is not timed). torchattacks attacks every image in batches of 64; a forward pass on
the clean and one on the attacked images give its verdict: robust is what both classify correctly. Its time is that of
attack and verdicts, on images already decoded. Ours is that of the whole `evaluate` call, with digests, checks and the
record.

    python benchmarks/attacks.py [--repeats 3] [--threads 1]
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from _shared import cpu_times, header
from tabulate import tabulate
from torch import Tensor, nn

from robustbench_kpca import Record, evaluate, load_data, load_model

MODELS = ("vit_digits", "vit_digits_adv", "rpc_symvit_digits", "rpc_symvit_digits_adv")
PROTOCOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "FGSM": ("fgsm-linf-8_255", {}),
    "PGD-20": ("pgd20-linf-8_255", {}),
    "PGD-40": ("pgd20-linf-8_255", {"steps": 40}),
}
STEPS = {"FGSM": 1, "PGD-20": 20, "PGD-40": 40}  # torchattacks spends one backward pass on each
EPS = 8 / 255
BATCH_SIZE = 64
COLUMNS = (
    "model", "attack",
    "robust acc. (%), ours", "torchattacks",
    "forwards/image, ours", "torchattacks",
    "backwards/image, ours", "torchattacks",
    "CPU s, ours", "torchattacks",
    "torchattacks / ours",
)  # fmt: skip
FORMATS = ("", "", ".2f", ".2f", ".2f", ".2f", ".2f", ".2f", ".3f", ".3f", ".2f")


def reference(attack: str, model: nn.Module) -> Any:
    """Return torchattacks' attack at the settings of ours."""
    import torchattacks  # type: ignore[import-untyped]

    if attack == "FGSM":
        return torchattacks.FGSM(model, eps=EPS)
    return torchattacks.PGD(model, eps=EPS, alpha=EPS / 4, steps=STEPS[attack], random_start=True)


def correct(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(images)
    return logits.argmax(1) == labels


def reference_accuracy(attack: str, model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Attack with torchattacks, judge by forward passes."""
    torch.manual_seed(0)
    attacker, robust = reference(attack, model), 0
    for x, y in zip(images.split(BATCH_SIZE), labels.split(BATCH_SIZE), strict=True):
        attacked = attacker(x, y)
        robust += int((correct(model, x, y) & correct(model, attacked, y)).sum())
    return robust / len(images)


@contextmanager
def counted(model: nn.Module) -> Iterator[list[int]]:
    """Collect the size of every batch that passes forward through `model`."""
    sizes: list[int] = []
    hook = model.register_forward_hook(lambda _module, _inputs, logits: sizes.append(len(logits)))
    try:
        yield sizes
    finally:
        hook.remove()


def compare(name: str, attack: str, repeats: int) -> list[Any]:
    """Measure one row of the table."""
    model, samples = load_model(name), load_data("digits")
    images, labels = samples.tensors()
    protocol, overrides = PROTOCOLS[attack]

    def ours() -> Record:
        return evaluate(model, samples, protocol=protocol, batch_size=BATCH_SIZE, **overrides)

    def theirs() -> float:
        return reference_accuracy(attack, model, images, labels)

    record = ours()
    with counted(model) as sizes:
        accuracy = theirs()
    own_time, their_time = cpu_times((ours, theirs), repeats)
    n = len(samples)
    return [
        name, attack,
        100 * record.metrics["robust_accuracy"].value, 100 * accuracy,
        record.passes.forwards / n, sum(sizes) / n,
        record.passes.backwards / n, STEPS[attack],
        own_time, their_time,
        their_time / own_time,
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Our attack engine against torchattacks.")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each, of which the median is shown")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    arguments = parser.parse_args()
    if find_spec("torchattacks") is None:
        parser.exit(2, "torchattacks is missing: pip install 'robustbench-kpca[reference]'\n")
    torch.set_num_threads(arguments.threads)
    print(header(), end="\n\n")
    rows = [compare(name, attack, arguments.repeats) for name in MODELS for attack in PROTOCOLS]
    print(tabulate(rows, COLUMNS, tablefmt="github", floatfmt=FORMATS))


if __name__ == "__main__":
    main()
