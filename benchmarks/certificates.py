"""Brackets: networks are certified, then attacked on the same images, and every proof is held against every attack.

`python benchmarks/certificates.py` trains four networks on digits as they are certified: minutes on one core. `--only
cifar` and `--only deit` take networks of others, which saw whole images in training, from the folder `RBK_DATA` with
`peers.py`: up to an hour each for 100 images. `--only bundled` certifies and attacks every bundled network of
digits in all four ways, to see whether an attack contradicts a proof.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca.models.build import create_model
from robustbench_kpca.models.bundle import bundled
from robustbench_kpca.models.certified import Certified, Viewed
from robustbench_kpca.models.sources.ablated import Ablated
from robustbench_kpca.models.sources.masked import Masked
from robustbench_kpca.models.sources.smoothed import Noisy, Sparse
from robustbench_kpca.records.proof import Bands, Masks, Noise, Pixels
from robustbench_kpca.report.contradictions import broken_proof

MODELS = {
    "ablated, bands of 8, stride 2": (Ablated, Bands(band=8, stride=2, fill=0)),
    "masked, 3 x 3 masks": (Masked, Masks(patch=4, masks=3, fill=0)),
    "smoothed, sigma 0.25": (Noisy, Noise(sigma=0.25)),
    "smoothed, 256 of 1024 pixels": (Sparse, Pixels(keep=256, pixels=1024, fill=0)),
}
PROTOCOLS = {
    "patches": ("certified-patch-4", "patch-4-anywhere"),
    "l2": ("certified-l2-0.25", "pgd20-l2-128_255"),
    "l0": ("certified-l0-4", "l0-8"),
}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "patches": ({}, {}),
    "l2": ({}, {"eps": 0.25, "draws": 100}),
    "l0": ({"eps": 1}, {"eps": 1, "draws": 20, "steps": 40, "queries": 200}),
}
"""What is replaced in the certificate and in the attack. With 256 of 1024 pixels shown, at most 2 are proven."""
FEW_STEPS = {"steps": 5, "places": 2}
SHORT = {"patches": FEW_STEPS, "l2": {"draws": 20}}
"""What is replaced in attacks where only a contradiction is looked for."""
PEERS = {
    "deit": {
        f"DeiT-Tiny, bands of {band}": ("deit_tiny", Ablated, Bands(band=band, stride=16, drop=True))
        for band in (48, 64)
    },
    "cifar": {
        "ViT, bands of 4": ("cifar10_vit_d64", Ablated, Bands(band=4)),
        "ViT, bands of 4, tokens dropped": ("cifar10_vit_d64", Ablated, Bands(band=4, drop=True)),
        "ViT, 3 x 3 masks": ("cifar10_vit_d64", Masked, Masks(patch=4, masks=3)),
        "post-norm, bands of 4": ("cifar10_postnorm", Ablated, Bands(band=4)),
        "post-norm, 3 x 3 masks": ("cifar10_postnorm", Masked, Masks(patch=4, masks=3)),
    },
}
Case = tuple[str, Certified, tuple[Any, ...], dict[str, Any], dict[str, Any]]
"""A name, a model, images, and what is replaced in the certificate and in the attack."""


def trained(kind: type, proof, epochs: int) -> Certified:
    """Train a network on images changed as its views or draws are, a random view for each batch."""
    torch.manual_seed(0)
    model = kind(create_model("vit_digits").train(), proof)
    images, labels = load_data("digits", "train").tensors()
    steps = epochs * -(-len(images) // 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    views = list(model.views(*images.shape[2:])) if isinstance(model, Viewed) else []
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(64):
            x = images[rows]
            if isinstance(model, Viewed):
                logits = model.look(x, views[int(torch.randint(len(views), ()))])
            else:
                logits = model.base(model.changed(x, torch.randn_like(x)))
            optimizer.zero_grad()
            F.cross_entropy(logits, labels[rows]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def digits(limit: int, epochs: int) -> Iterator[Case]:
    """Yield networks that are trained here."""
    data = load_data("digits", "test", limit=limit)
    for name, (kind, proof) in MODELS.items():
        yield name, trained(kind, proof, epochs), (data,), *CHANGES[proof.norm]


def of_the_package(limit: int, _: int) -> Iterator[Case]:
    """Yield the bundled networks of digits, which saw whole images in training, so that little is proven."""
    data = load_data("digits", "test", limit=limit)
    for network in sorted(name for name in bundled() if "_digits" in name):
        for name, (kind, proof) in MODELS.items():
            threat, changes = CHANGES[proof.norm]
            model = kind(load_model(network), proof).eval()
            yield f"{network}, {name}", model, (data,), threat, changes | SHORT.get(proof.norm, {})


def of_others(part: str, limit: int) -> Iterator[Case]:
    """Yield networks of `peers.py`; patches have 16 x 16 pixels on photographs, 4 x 4 on CIFAR-10.

    Tokens of DeiT-Tiny without a visible pixel are dropped.
    """
    sys.path.insert(0, os.environ.get("RBK_DATA", "."))
    import peers  # type: ignore[import-not-found]

    data: tuple[Tensor, Tensor] = peers.imagenet(n=limit) if part == "deit" else peers.cifar10()
    threat = {"patch": 16 if part == "deit" else 4}
    for name, (network, kind, proof) in PEERS[part].items():
        model = kind(getattr(peers, network)(), proof).eval()
        yield name, model, tuple(each[:limit] for each in data), threat, threat | FEW_STEPS


def main() -> None:
    """Certify, attack, compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("digits", "bundled", *PEERS), default="digits")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--limit", type=int, help="images; 50 digits, 8 of bundled networks, else 100")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    limit = asked.limit or {"deit": 100, "cifar": 100, "bundled": 8}.get(asked.only, 50)
    own = {"digits": digits, "bundled": of_the_package}.get(asked.only)
    cases = own(limit, asked.epochs) if own else of_others(asked.only, limit)
    print("| model | clean | abstained | [certified, attacked] | mean radius | contradictions | CPU seconds |")
    print("|---|---|---|---|---|---|---|")
    for name, model, data, threat, changes in cases:
        certificate, attack = PROTOCOLS[model.proof.norm]
        how = {"quiet": True, "audit": False, "batch_size": 25}
        started = time.process_time()
        proven = evaluate(model, *data, protocol=certificate, **how, **threat)
        clean, abstained, low, radius = (
            proven.metrics[number].value
            for number in ("clean_accuracy", "abstained", "certified_accuracy", "certified_radius")
        )
        middle = time.process_time()
        attacked = evaluate(model, *data, protocol=attack, **how, **changes)
        high, broken = attacked.metrics["robust_accuracy"].value, broken_proof(proven, attacked) or "none"
        numbers = f"{100 * clean:.1f} | {100 * abstained:.1f} | [{100 * low:.1f}, {100 * high:.1f}] | {radius:.3g}"
        took = f"{middle - started:.0f}, {time.process_time() - middle:.0f}"
        print(f"| {name} | {numbers} | {broken} | {took} |", flush=True)


if __name__ == "__main__":
    main()
