"""Planted fakes: wrappers that make a network look robust, or an attack blind, without making it robust.

Each comes at three strengths and wraps around any model. `PYTHONPATH=tests rbk audit fakes:fake --set model.base=NAME
--set model.kind=KIND --set model.strength=0` audits one.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from robustbench_kpca import load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.audit.preflight import preflight
from robustbench_kpca.tasks import task_named

BASES = ("vit_digits", "symvit_digits_adv")


class Scaled(torch.autograd.Function):
    """Passes images on, and their gradients times a factor."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Fake(nn.Module):
    """`before` acts on the images, `after` on the logits (and sees the images)."""

    def __init__(self, inner: nn.Module, before=lambda x: x, after=lambda z, x: z):
        super().__init__()
        self.inner, self.before, self.after = inner, before, after
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(self.before(x)), x)


def quantise(levels: int):
    """Round the images; the gradient is zero almost everywhere."""
    return {"before": lambda x: (x * (levels - 1)).round() / (levels - 1)}


def straight_through(levels: int):
    """Round the images, and pass the gradient on as if that had not been."""

    def before(x):
        return x + ((x * (levels - 1)).round() / (levels - 1) - x).detach()

    return {"before": before}


def block(rows: int):
    """Let no gradient through in the upper `rows` of 32."""

    def before(x):
        cut = rows * x.shape[2] // 32
        return torch.cat([x[:, :, :cut].detach() + 0 * x[:, :, :cut], x[:, :, cut:]], 2)

    return {"before": before}


def saturate(slope: float):
    """Squash the logits; the larger ones lie where the sigmoid is flat."""
    return {"after": lambda z, x: torch.sigmoid(slope * z)}


def scale(factor: float):
    """Multiply the logits, so that the cross-entropy of a right answer is rounded to zero."""
    return {"after": lambda z, x: factor * z}


def noise(size: float):
    rng = torch.Generator().manual_seed(0)
    return {"before": lambda x: x + size * torch.randn(x.shape, generator=rng)}


def batch(share: float):
    return {"after": lambda z, x: z - share * z.mean(0)}


class _Shuffled(torch.autograd.Function):
    @staticmethod
    def forward(context, x, share):
        context.share = share
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        order = torch.randperm(gradient[0].numel(), generator=torch.Generator().manual_seed(0))
        other = gradient.flatten(1)[:, order].view_as(gradient)
        return context.share * other + (1 - context.share) * gradient, None


def shuffle(share: float):
    """Mix the gradient with itself in another order of the pixels."""
    return {"before": lambda x: _Shuffled.apply(x, share)}


def _off_grid(x):
    """Say which images are no 8-bit ones, as adversarial images are not."""
    return ((x * 255 - (x * 255).round()).abs() > 1e-3).flatten(1).any(1)


def nan(how: str):
    """Fail when attacked: `loss` or `logits` are NaN off the 8-bit grid (the former only under autograd), or every
    `gradient` is."""
    if how == "gradient":
        return {"before": lambda x: Scaled.apply(x, float("nan"))}

    def after(z, x):
        bad = _off_grid(x) & (torch.is_grad_enabled() if how == "loss" else True)
        return torch.where(bad.view(-1, *[1] * (z.ndim - 1)), torch.nan, z)

    return {"after": after}


def shatter(factor: float):
    """Add a ripple of 0.4 pixel levels at most, whose slope is up to `factor` times that of the image."""
    return {"before": lambda x: x + 0.0016 * torch.sin(factor / 0.0016 * x)}


FAKES: dict[str, tuple[Callable, tuple]] = {
    "quantise": (quantise, (16, 8, 4)),
    "straight-through": (straight_through, (16, 8, 4)),
    "block": (block, (16, 24, 32)),
    "saturate": (saturate, (0.5, 1.0, 2.0)),
    "scale": (scale, (100.0, 1000.0, 1e5)),
    "noise": (noise, (0.5 / 255, 4 / 255, 16 / 255)),
    "batch": (batch, (0.01, 0.1, 1.0)),
    "nan": (nan, ("loss", "logits", "gradient")),
    "shatter": (shatter, (1.0, 3.0, 10.0)),
}
SEGMENTATION = task_named("segmentation")
PER_PIXEL: dict[str, tuple[Callable, tuple]] = FAKES | {
    "scale": (scale, (3.0, 10.0, 100.0)),
    "shuffle": (shuffle, (0.5, 0.9, 1.0)),
}
"""Those that are planted on segmenters."""


def fake(base: str, kind: str, strength: int) -> Fake:
    make, strengths = PER_PIXEL[kind]
    return Fake(load_model(base), **make(strengths[strength]))


def refusal(model: nn.Module, images: Tensor, labels: Tensor) -> str:
    try:
        preflight(Runner(model, len(images), torch.device("cpu")), images, labels)
    except BadInputError as error:
        return str(error).rpartition("--allow ")[2]
    return ""
