"""Brackets on digits: small networks trained as they are certified, then certified and attacked on the same images.

`python benchmarks/certificates.py` trains four networks and prints a table: minutes on one core.
"""

import argparse
import time

import torch
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import evaluate, load_data
from robustbench_kpca.models.build import create_model
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
    "patches": ("certified-patch-4", "patch-4-anywhere", {}),
    "l2": ("certified-l2-0.25", "pgd20-l2-128_255", {"eps": 0.25, "draws": 100}),
    "l0": ("certified-l0-4", None, {}),
}


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


def main() -> None:
    """Train, certify, attack, compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--limit", type=int, default=50)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data = load_data("digits", "test", limit=asked.limit)
    print("| model | clean | abstained | [certified, attacked] | mean radius | contradictions | seconds |")
    print("|---|---|---|---|---|---|---|")
    for name, (kind, proof) in MODELS.items():
        model, started = trained(kind, proof, asked.epochs), time.perf_counter()
        certificate, attack, changes = PROTOCOLS[proof.norm]
        how = {"quiet": True, "audit": False, "batch_size": 25}
        proven = evaluate(model, data, protocol=certificate, **how)
        clean, abstained, low, radius = (
            proven.metrics[number].value
            for number in ("clean_accuracy", "abstained", "certified_accuracy", "certified_radius")
        )
        high, broken = "–", "–"
        if attack is not None:
            attacked = evaluate(model, data, protocol=attack, **how, **changes)
            high, broken = (
                f"{100 * attacked.metrics['robust_accuracy'].value:.1f}",
                broken_proof(proven, attacked) or "none",
            )
        took = time.perf_counter() - started
        numbers = f"{100 * clean:.1f} | {100 * abstained:.1f} | [{100 * low:.1f}, {high}] | {radius:.2f}"
        print(f"| {name} | {numbers} | {broken} | {took:.0f} |", flush=True)


if __name__ == "__main__":
    main()
