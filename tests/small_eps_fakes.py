"""Fakes that were tried after the limits of the second audit were written, and honest models beside them.

`benchmarks/audit.py` audits all of them at three eps. A fake wraps around a plain network; most hide something.
"""

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from fakes import Fake, Scaled, block, saturate, scale, shatter, shuffle
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import load_model

BASE = "vit_digits"


def stairs(levels: float, steep: float, leak: float = 0.0):
    """Round the images by sigmoids, or by tanh at half the steepness; add `leak` times the images."""

    def before(x):
        u = x * (levels - 1)
        return (u.floor() + torch.sigmoid(steep * (u - u.floor() - 0.5)) + leak * u) / (levels - 1)

    return {"before": before}


def soft_quantise(levels: int):
    """Round the images by steep sigmoids: nearly flat between the steps, but nowhere exactly."""
    return stairs(levels, 40, 1e-3)


def leaky_quantise(levels: int):
    """Round the images, and add a thousandth of them."""
    return {"before": lambda x: (x * (levels - 1)).round() / (levels - 1) + 1e-3 * x}


def _cosines(n: int) -> Tensor:
    k = torch.arange(n, dtype=torch.float64)
    rows = torch.cos(torch.pi * (k[None] + 0.5) * k[:, None] / n) * (2 / n) ** 0.5
    rows[0] /= 2**0.5
    return rows.float()


def jpeg_like(step: float):
    """Round the cosine transform of blocks of 8 by 8 to multiples of `step`, with a cubic in place of the jump."""
    base = _cosines(8)

    def before(x):
        n, c, h, w = x.shape
        blocks = x.reshape(n, c, h // 8, 8, w // 8, 8).transpose(3, 4)
        u = (base @ blocks @ base.T) / step
        u = (u.round() + (u - u.round()) ** 3).detach() + (u - u.detach()) * 3 * (u - u.round()).detach() ** 2
        return (base.T @ (u * step) @ base).transpose(3, 4).reshape(n, c, h, w)

    return {"before": before}


class _Faint(torch.autograd.Function):
    @staticmethod
    def forward(context, x, factor):
        context.factor = factor
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * context.factor, None


def faint(factor: float):
    return {"before": lambda x: _Faint.apply(x, factor)}


def seeded_noise(size: float):
    """Add noise that is drawn anew for each image, from a seed that the image itself gives."""

    def of(image: Tensor) -> Tensor:
        seed = int.from_bytes(hashlib.sha256(image.detach().numpy().tobytes()).digest()[:7], "little")
        return size * torch.randn(image.shape, generator=torch.Generator().manual_seed(seed))

    return {"before": lambda x: x + torch.stack([of(image) for image in x])}


def winners(share: float):
    """Keep this share of the brightest pixels of each image, and set the others to zero."""

    def before(x):
        flat = x.flatten(1)
        least = flat.topk(int(share * flat.shape[1]), dim=1).values[:, -1]
        return x * (x >= least.view(-1, 1, 1, 1))

    return {"before": before}


def cancel(steepness: float):
    """Push pixels towards black and white, and let no gradient know: noise near both is cancelled."""

    def before(x):
        clean = torch.sigmoid(steepness * (x - 0.5))
        return clean.detach() + 0.01 * (x - x.detach())

    return {"before": before}


def votes(temperature: float):
    """Average nearly hard votes of shifted views, and take the logarithm."""

    class Votes(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            views = [x, x.roll(1, 2), x.roll(1, 3)]
            return torch.stack([(temperature * self.inner(view)).softmax(1) for view in views]).mean(0).add(1e-4).log()

    return Votes


def uphill():
    return {"before": lambda x: Scaled.apply(x, -1.0)}


FAKES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "soft quantiser, 16 levels": lambda base: Fake(base, **soft_quantise(16)),
    "soft quantiser, 8 levels": lambda base: Fake(base, **soft_quantise(8)),
    "leaky quantiser, 8 levels": lambda base: Fake(base, **leaky_quantise(8)),
    "JPEG-like rounding": lambda base: Fake(base, **jpeg_like(0.4)),
    "gradient times 1e-12": lambda base: Fake(base, **faint(1e-12)),
    "gradient turned around": lambda base: Fake(base, **uphill()),
    "gradient of other pixels": lambda base: Fake(base, **shuffle(0.9)),
    "logits times 1e4": lambda base: Fake(base, **scale(1e4)),
    "distilled: logits times 40": lambda base: Fake(base, **scale(40.0)),
    "noise seeded by the image": lambda base: Fake(base, **seeded_noise(0.1)),
    "shattered": lambda base: Fake(base, **shatter(5.0)),
    "k winners": lambda base: Fake(base, **winners(0.2)),
    "upper rows stopped": lambda base: Fake(base, **block(24)),
    "noise cancelled": lambda base: Fake(base, **cancel(8.0)),
    "hard votes averaged": lambda base: votes(50.0)(base).eval(),
    "sigmoid of the logits": lambda base: Fake(base, **saturate(2.0)),
}
"""Name -> a function that plants it on a network."""


class Ensemble(nn.Module):
    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(0)


def pooled(x: Tensor) -> Tensor:
    return F.interpolate(F.avg_pool2d(x, 2), scale_factor=2)


HONEST: dict[str, Callable[[], nn.Module]] = {
    "vit_digits": lambda: load_model("vit_digits"),
    "symvit_digits": lambda: load_model("symvit_digits"),
    "rpc_symvit_digits": lambda: load_model("rpc_symvit_digits"),
    "symvit_digits_adv": lambda: load_model("symvit_digits_adv"),
    "logits / 10": lambda: Fake(load_model(BASE), after=lambda z, x: z / 10),
    "logits / 100": lambda: Fake(load_model(BASE), after=lambda z, x: z / 100),
    "logits / 10, adversarially trained": lambda: Fake(load_model("symvit_digits_adv"), after=lambda z, x: z / 10),
    "log-softmax": lambda: Fake(load_model(BASE), after=lambda z, x: z.log_softmax(1)),
    "log-softmax / 10": lambda: Fake(load_model(BASE), after=lambda z, x: z.log_softmax(1) / 10),
    "temperature: logits times 2": lambda: Fake(load_model(BASE), after=lambda z, x: 2 * z),
    "ensemble": lambda: Ensemble(load_model("vit_digits"), load_model("symvit_digits")),
    "pooled inputs": lambda: Fake(load_model(BASE), before=pooled),
}
"""Name -> a model that hides nothing, of the bundled digits."""
PEERS = ("cifar10_robust", "cifar10_vit_d64", "cifar10_postnorm")
"""Networks of others on CIFAR-10, where `RBK_DATA` names a folder with `peers.py`."""


def peers():
    """Return the module `peers` of `RBK_DATA`; None where there is none."""
    folder = os.environ.get("RBK_DATA")
    if not folder or not (Path(folder) / "peers.py").is_file():
        return None
    sys.path.insert(0, folder)
    import peers as found

    return found
