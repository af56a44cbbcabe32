"""Measure how often `autoattack-fast` and `autoattack` give the same verdict, and what each costs.

Both attack the same images of the same networks, at several eps. Where they differ, the images are listed. With
`--write` the result goes to `attacks/agreement.json`, from where `rbk eval`, `rbk records show` and boards take it.
Records are kept in `--out`, so an interrupted measurement goes on; the whole list takes about half an hour of one core.

    RBK_DATA=FOLDER python benchmarks/agreement.py [--only digits] [--write]

`RBK_DATA` names the folder with `peers.py`, which defines the CIFAR-10 networks and reads their images.
"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from _shared import header
from tabulate import tabulate
from torch import Tensor, nn

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca.files import write_atomic
from robustbench_kpca.protocols.agreement import FILE, Agreement, Measurements, Part, search_digest
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.agreement import in_full

FAST, REFERENCE = "autoattack-fast-linf-8_255", "autoattack-linf-8_255"
CHUNK = 128  # images of a record
COMMAND = "RBK_DATA=FOLDER python benchmarks/agreement.py --write"
Loaded = tuple[nn.Module, Tensor, Tensor]


class Rounded(nn.Module):
    """A network that sees pixels in 16 levels only, so that its gradient is zero: masked, not robust."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        logits: Tensor = self.net((15 * x).round() / 15)
        return logits


def cifar(name: str) -> Loaded:
    """Load a network and the images of `peers.py`."""
    sys.path.insert(0, os.environ.get("RBK_DATA", "."))
    import peers  # type: ignore[import-not-found]

    return (getattr(peers, name)(), *_cifar_images())


@cache
def _cifar_images() -> tuple[Tensor, Tensor]:
    import peers

    images: tuple[Tensor, Tensor] = peers.cifar10("test_jpeg")
    return images


def digits(name: str) -> Loaded:
    """Load a bundled network and the test digits."""
    return (load_model(name), *load_data("digits").in_order().tensors())


def masked(name: str) -> Loaded:
    """Load a bundled network whose gradient is hidden."""
    model, x, y = digits(name)
    return Rounded(model).eval(), x, y


@dataclass(frozen=True)
class Row:
    """The first `images` of a set, shown to a network at one eps."""

    name: str
    load: Callable[[str], Loaded]
    kind: Literal["robust", "plain", "masked"]
    eps: str
    images: int
    shown_as: str = ""


CIFAR = "CIFAR-10 test, JPEG copies"
ROWS = [
    Row("cifar10_robust", cifar, "robust", "2/255", 256),
    Row("cifar10_robust", cifar, "robust", "4/255", 256),
    Row("cifar10_robust", cifar, "robust", "8/255", 256),
    Row("vit_digits_adv", digits, "robust", "20/255", 128),
    Row("rpc_symvit_digits_adv", digits, "robust", "20/255", 128),
    Row("vit_digits", digits, "plain", "8/255", 128),
    Row("rpc_symvit_digits", digits, "plain", "8/255", 128),
    Row("vit_digits", masked, "masked", "8/255", 64, "vit_digits with masked gradients"),
]


def chunks(row: Row, protocol: str, out: Path) -> list[Record]:
    """Evaluate a row in records of `CHUNK` images, or take the records that are there."""
    model, x, y = row.load(row.name)
    end = row.images
    return [
        evaluate(
            model, x[at : min(at + CHUNK, end)], y[at : min(at + CHUNK, end)], protocol=protocol, eps=row.eps,
            audit=False, batch_size=64, out=out, name=row.shown_as or row.name,
        )
        for at in range(0, end, CHUNK)
    ]  # fmt: skip


def compare(row: Row, out: Path) -> tuple[Part, list[str]]:
    """Return the counts of a row, and a line for every image on which the two differ."""
    fast, reference = (chunks(row, protocol, out) for protocol in (FAST, REFERENCE))
    ours, theirs = (
        np.concatenate([record.outcomes["broken_by"] for record in records]) for records in (fast, reference)
    )
    spent = [
        sum(record.passes.forwards + record.passes.backwards for record in records) for records in (fast, reference)
    ]
    n, missed, more = len(ours), (ours == "") & (theirs != ""), (ours != "") & (theirs == "")
    ids = [f"{at * CHUNK}+{name}" for at, record in enumerate(fast) for name in record.outcomes["sample"]]
    lines = [
        f"{row.shown_as or row.name} at {row.eps}: image {ids[at]}, {FAST}: {ours[at] or 'robust'}, "
        f"{REFERENCE}: {theirs[at] or 'robust'}"
        for at in np.flatnonzero(missed | more)
    ]
    part = Part(
        network=row.shown_as or row.name,
        kind=row.kind,
        data=CIFAR if row.load is cifar else "digits test",
        eps=row.eps,
        images=n,
        attacked=int((theirs != "clean").sum()),
        robust=int((theirs == "").sum()),
        agreed=n - int(missed.sum()) - int(more.sum()),
        only_reference_broke=int(missed.sum()),
        only_this_broke=int(more.sum()),
        passes=round(spent[0] / n, 1),
        reference_passes=round(spent[1] / n, 1),
    )
    return part, lines


def main() -> None:
    parser = argparse.ArgumentParser(description=f"Compare the verdicts of {FAST} with those of {REFERENCE}.")
    parser.add_argument("--only", nargs="+", default=[], help="rows whose network contains one of these words")
    parser.add_argument("--out", type=Path, default=Path("runs/agreement"), help="folder of the records")
    parser.add_argument("--write", action="store_true", help=f"write attacks/{FILE}; needs every row")
    arguments = parser.parse_args()
    if arguments.write and arguments.only:
        parser.error("--write needs every row: leave --only out")
    torch.set_num_threads(1)
    print(header(("torch", "timm", "numpy")))
    parts, differences = [], []
    for row in ROWS:
        if not arguments.only or any(word in (row.shown_as or row.name) for word in arguments.only):
            part, lines = compare(row, arguments.out)
            parts.append(part)
            differences += lines
            print(part, flush=True)
    scenario = load_scenario(FAST)[1]
    assert isinstance(scenario, Attack)
    today = datetime.now(UTC).date().isoformat()
    found = Agreement(
        protocol=FAST, reference=REFERENCE, search=search_digest(scenario), date=today, command=COMMAND, parts=parts
    )
    columns = {
        "network": "network", "eps": "eps", "images": "images", "attacked": "attacked", "robust": "robust",
        "agreed": "agreed", "only_reference_broke": "only autoattack broke", "only_this_broke": "only fast broke",
        "passes": "passes, fast", "reference_passes": "passes, autoattack",
    }  # fmt: skip
    rows = [
        [*(getattr(part, name) for name in columns), f"{part.reference_passes / part.passes:.1f}"] for part in parts
    ]
    print("\n" + tabulate(rows, [*columns.values(), "ratio"], tablefmt="github"))
    print("\n" + "\n".join([in_full(found), *differences]))
    if arguments.write:
        file = Path(__file__).parents[1] / "attacks" / FILE
        write_atomic(file, (Measurements(measured=(found,)).model_dump_json(indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
