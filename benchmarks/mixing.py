"""Measure how the pursuit of RPC attention affects token mixing, by iteration, and the gradients used by attacks.

`keys` runs it on Gaussian keys and values, (B, H, N, D) = (2, 3, 197, 64), lambda = 4. `models` measures bundled models
on the digits test set; their weights are always those trained with the models' own n. `gradients` compares the key
gradient of fused attention in single precision with double precision, on the Gaussian keys, for a random cotangent.

Columns: density of S; residual ||K - L - S|| / ||K||; the mean largest attention weight of a token; the mean attention
of a token to itself; the mean entropy of its attention in nats; ||L - V|| / ||V||, 0 if the layer returns V unchanged.
Row n = 0 is plain symmetric attention on the same keys.

    python benchmarks/mixing.py keys [--std 0.3 0.6 1 2] [--threshold 'lam*mu' 'lam/mu']
    python benchmarks/mixing.py models [--names rpc_symvit_digits ...]
    python benchmarks/mixing.py gradients [--std 0.3 0.6 1 2] [--threshold 'lam*mu' 'lam/mu']
"""

import argparse
import math
from contextlib import nullcontext
from typing import Any

import torch
from _shared import header
from tabulate import tabulate
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from robustbench_kpca import load_data, load_model
from robustbench_kpca.attention.rpc import Iterate, Pursuit
from robustbench_kpca.models.mixing import Mixing, at_most, gradient_norms, rpc_layers, trace_pursuit

SHAPE = (2, 3, 197, 64)
MODELS = ("rpc_symvit_digits", "rpc_symvit_digits_adv", "rpc_symvit_all_digits", "rpc_symvit_all_digits_adv")
MEASURES = ("density of S", "residual", "max. attention", "to itself", "entropy", "‖L − V‖/‖V‖")
FORMATS = (".4f", ".3f", ".3f", ".3f", ".3f", ".1e")


def gaussian(std: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return keys, values and a cotangent in double precision."""
    rng = torch.Generator().manual_seed(0)
    k, v, cotangent = (torch.randn(SHAPE, generator=rng, dtype=torch.float64) for _ in range(3))
    return std * k, v, cotangent


def cells(step: Mixing) -> list[float]:
    return [step.density, step.residual, step.max_attention, step.diagonal, step.entropy, step.value_distance]


def keys(settings: argparse.Namespace) -> None:
    """Print a table for each threshold rule and each size of keys."""
    for threshold in settings.threshold:
        for std in settings.std:
            k, v, _ = gaussian(std)
            steps = trace_pursuit(Pursuit(6, threshold=threshold), k.float(), v.float())
            print(f"Gaussian keys, std {std:g}, threshold {threshold}; log(tokens) = {math.log(SHAPE[2]):.3f}\n")
            show([[step.iteration, *cells(step)] for step in steps], ("n", *MEASURES), ("", *FORMATS))


def models(settings: argparse.Namespace) -> None:
    """Print, for each model, a table of its layers and one of its loss gradients."""
    images, labels = load_data("digits").tensors()
    gradients = []
    for name in settings.names:
        model = load_model(name)
        rows = []
        for block, (layer, (k, v)) in enumerate(zip(rpc_layers(model), keys_and_values(model, images), strict=True)):
            std = float(k.std())
            rows += [[block, std, step.iteration, *cells(step)] for step in trace_pursuit(layer.pursuit, k, v)]
        print(f"{name}; log(tokens) = {math.log(k.shape[2]):.3f}\n")
        show(rows, ("RPC layer", "std of keys", "n", *MEASURES), ("", ".2f", "", *FORMATS))
        for n, norm in enumerate(gradient_norms(model, images, labels)):
            gradients.append([name, n, norm, *by_layer(model, images, labels, n)])
    head = ("model", "at most n", "by the image", "by K of the first RPC layer", "by V", "accuracy (%)")
    print("Mean L2 norm over the test images of the gradient of the cross-entropy\n")
    show(gradients, head, ("", "", ".3g", ".3g", ".3g", ".2f"))


def keys_and_values(model: Any, images: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return keys and values of every RPC layer in a forward pass."""
    found: dict[int, tuple[Tensor, Tensor]] = {}
    layers = rpc_layers(model)
    for block, layer in enumerate(layers):
        layer.observer = lambda step, block=block: found.setdefault(block, (step.k.detach(), step.v.detach()))
    with torch.no_grad():
        model(images)
    for layer in layers:
        layer.observer = None
    return list(found.values())


def by_layer(model: Any, images: Tensor, labels: Tensor, iterations: int) -> list[float]:
    """Return gradient norms with respect to K and V of the first RPC layer, and accuracy, with at most `iterations`."""
    seen: list[Iterate] = []
    with at_most(model, iterations):
        first = rpc_layers(model)[0]
        first.observer = seen.append
        logits = model(images)
        first.observer = None
    found = torch.autograd.grad(F.cross_entropy(logits, labels, reduction="sum"), (seen[0].k, seen[0].v))
    norms = [float(gradient.flatten(1).norm(dim=1).mean()) for gradient in found]
    return [*norms, 100 * float((logits.argmax(1) == labels).double().mean())]


def gradients(settings: argparse.Namespace) -> None:
    """Print, for each threshold rule, a table of the gradient's error in single precision, relative to double."""
    head = (
        "std of keys",
        "n",
        "‖∂/∂K‖",
        "‖∂/∂V‖",
        "error by K, fused",
        "relative",
        "relative, unfused",
        "error / ‖∂/∂V‖",
    )
    for threshold in settings.threshold:
        rows = []
        for std in settings.std:
            for n in (1, 4, 6):
                pursuit = Pursuit(n, threshold=threshold)
                exact = key_and_value_gradient(pursuit, std, torch.float64)
                size, values = (float(gradient.norm()) for gradient in exact)
                errors = [
                    float((key_and_value_gradient(pursuit, std, torch.float32, fused=fused)[0] - exact[0]).norm())
                    for fused in (True, False)
                ]
                rows.append([std, n, size, values, errors[0], *(e / size for e in errors), errors[0] / values])
        print(f"float32 against float64, threshold {threshold}\n")
        show(rows, head, ("", "", *([".1e"] * 6)))


def key_and_value_gradient(
    pursuit: Pursuit, std: float, dtype: torch.dtype, *, fused: bool = True
) -> tuple[Tensor, ...]:
    k, v, cotangent = (tensor.to(dtype) for tensor in gaussian(std))
    with nullcontext() if fused else sdpa_kernel(SDPBackend.MATH):
        return torch.autograd.grad(pursuit(k.requires_grad_(), v.requires_grad_()), (k, v), cotangent)


def show(rows: list[list[Any]], head: tuple[str, ...], formats: tuple[str, ...]) -> None:
    print(tabulate(rows, head, tablefmt="github", floatfmt=formats), end="\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the effect of the pursuit on token mixing and gradients.")
    commands = parser.add_subparsers(required=True)
    for part in (keys, gradients):
        command = commands.add_parser(part.__name__)
        command.add_argument("--std", type=float, nargs="+", default=[0.3, 0.6, 1.0, 2.0])
        command.add_argument("--threshold", nargs="+", default=["lam*mu", "lam/mu"])
        command.set_defaults(part=part)
    command = commands.add_parser("models")
    command.add_argument("--names", nargs="+", default=list(MODELS))
    command.set_defaults(part=models)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    print(header(("torch",)), end="\n\n")
    settings.part(settings)


if __name__ == "__main__":
    main()
