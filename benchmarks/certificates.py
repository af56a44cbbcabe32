"""Train the networks of the board `digits-bracket` as they are certified: on random views or draws of their images.

    python benchmarks/certificates.py leaderboards/digits-bracket/trainings [--epochs 60] [--only masked]

About half a minute of one core a network. Networks that saw whole images in training answer hidden parts badly: of six
bundled ones, double masking proved no answer on 48 digits.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import load_data
from robustbench_kpca._core.files import write_atomic
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.models.build import create_model
from robustbench_kpca.models.certified import Certified, Viewed
from robustbench_kpca.models.sources.ablated import Ablated
from robustbench_kpca.models.sources.masked import Masked
from robustbench_kpca.models.sources.smoothed import Sparse
from robustbench_kpca.records.proof import Bands, Masks, Pixels, Proof

MODELS: dict[str, tuple[Callable[..., Viewed | Sparse], Proof]] = {
    "ablated": (Ablated, Bands(band=8, stride=2, fill=0)),
    "masked": (Masked, Masks(patch=4, masks=3, fill=0)),
    "sparse": (Sparse, Pixels(keep=256, pixels=1024, fill=0)),
}


def trained(kind: Callable[..., Viewed | Sparse], proof: Proof, epochs: int) -> Certified:
    """Train a network on images changed as its views or draws are, a random view for each batch."""
    torch.manual_seed(0)
    model = kind(create_model("vit_digits").train(), proof)
    images, labels = Samples.require(load_data("digits", "train")).tensors()
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
    """Train and write one file of weights a network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the weights")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--only", choices=(*MODELS,))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name, (kind, proof) in MODELS.items():
        if asked.only in (None, name):
            weights = trained(kind, proof, asked.epochs).base.state_dict()
            file = asked.out / f"{name}.safetensors"
            write_atomic(file, save({key: value.contiguous() for key, value in weights.items()}))
            print(file, flush=True)


if __name__ == "__main__":
    main()
