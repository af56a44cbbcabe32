"""Measure parameters, FLOPs, time and memory of whole models, at test and in training (as the paper's Table 13).

Untrained models on random images, in single precision:

- GFLOPs per image, two per multiply-add, of the matrix products and convolutions, those of attention included (counted
  with attention as plain matrix products, so without the recomputation of fused attention);
- ms per image, medians of interleaved calls: process CPU time on one thread, elapsed time on more and on a GPU; test is
  a forward pass without gradients, training a forward and a backward pass for all parameters, without the optimiser;
- peak MB of tensors during such a call, including the gradients of parameters but not the parameters themselves.

    python benchmarks/models.py [--batch-size 8] [--threads 1] [--device cuda] [--repeats 5] [--models NAME ...]
"""

import argparse
import math
from typing import Any

import torch
from _shared import cpu_times, header, peak_bytes, wall_times
from tabulate import tabulate
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from robustbench_kpca import create_model

VITS = ("vit", "symvit", "rpc_symvit", "rpc_symvit_all", "scaled_vit", "primal_vit", "kep_svgp_vit")
MODELS = (*(f"{family}_tiny_patch16_224" for family in VITS), "fan_tiny", "symfan_tiny", "rpc_fan_tiny")
COLUMNS = (
    "", "parameters (M)",
    "GFLOPs/image, test", "training",
    "ms/image, test", "training",
    "peak MB, test", "training",
)  # fmt: skip
FORMATS = ("", ".2f", ".2f", ".2f", ".1f", ".1f", ".0f", ".0f")


def convolution_backward(gradient: Any, _x: Any, weight: Any, *rest: Any, **_: Any) -> int:
    """Count a backward convolution as one forward per requested gradient; torch's own count ignores groups."""
    wanted = sum(rest[-1][:2])  # requested gradients of input and weight
    return int(wanted * 2 * math.prod(gradient) * math.prod(weight[1:]))


class Subject:
    """A model with a batch to run it on."""

    def __init__(self, name: str, batch_size: int, device: str) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = create_model(name).to(device)
        side = int(self.model.pretrained_cfg["input_size"][-1])
        self.images = torch.rand(batch_size, 3, side, side).to(device)
        self.labels = torch.zeros(batch_size, dtype=torch.long, device=device)

    def test(self) -> Tensor:
        """Run forward."""
        self.model.eval()
        with torch.no_grad():
            logits: Tensor = self.model(self.images)
        return logits

    def train(self) -> tuple[Tensor, ...]:
        """Run forward and backward; the loss is the cross-entropy plus the layers' penalties."""
        self.model.train()
        loss = F.cross_entropy(self.model(self.images), self.labels)
        for module in self.model.modules():
            loss = loss + sum(getattr(module, "penalties", {}).values())
        return torch.autograd.grad(loss, tuple(self.model.parameters()), allow_unused=True)

    def flops(self) -> list[float]:
        """Return GFLOPs per image, at test and in training."""
        found = []
        for run in (self.test, self.train):
            grouped: Any = {torch.ops.aten.convolution_backward: convolution_backward}
            with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=grouped) as counter:
                run()
            found.append(counter.get_total_flops() / len(self.images) / 1e9)
        return found


def measure(names: list[str], settings: argparse.Namespace) -> list[list[Any]]:
    """Return the rows of the table."""
    subjects = [Subject(name, settings.batch_size, settings.device) for name in names]
    times = []
    for runs in ([subject.test for subject in subjects], [subject.train for subject in subjects]):
        for run in runs:
            run()
        alone = settings.device == "cpu" and torch.get_num_threads() == 1
        found = cpu_times(runs, settings.repeats) if alone else wall_times(runs, settings.repeats, settings.device)
        times.append([1e3 * time / settings.batch_size for time in found])
    return [
        [
            name,
            sum(parameter.numel() for parameter in subject.model.parameters()) / 1e6,
            *subject.flops(),
            *time,
            *(peak_bytes(run, settings.device) / 1e6 for run in (subject.test, subject.train)),
        ]
        for name, subject, time in zip(names, subjects, zip(*times, strict=True), strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of whole models.")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="names of `rbk list models`")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1, help="number of torch threads")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls of each; the median is shown")
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    print(header(("torch", "timm", "numpy")), f"{settings.device} float32; batch {settings.batch_size}", sep="; ")
    print("\n" + tabulate(measure(settings.models, settings), COLUMNS, tablefmt="github", floatfmt=FORMATS))


if __name__ == "__main__":
    main()
