"""A logit difference as a plane: its value and gradient at an image, and how far its zero lies."""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from robustbench_kpca.attacks.shared.ball import finite
from robustbench_kpca.attacks.shared.losses import difference
from robustbench_kpca.attacks.shared.rows import choose
from robustbench_kpca.protocols.threat import Norm
from robustbench_kpca.types import Images, Labels, PerSample, Query


def linearise(x: Images, y: Labels, targets: Sequence[Labels], query: Query) -> Iterator[tuple[PerSample, Images]]:
    """Return z_t - z_y and its gradient, one target after the other; zero where the model gives NaN or infinity.

    FAB then moves part of the way back to the clean image.
    """
    losses = [partial(difference, labels=y, targets=target) for target in targets]
    for value, gradient in query.gradient_of_each(x, losses, outside=True):
        usable = torch.isfinite(value) & finite(gradient)
        yield torch.where(usable, value, 0).to(x.dtype), choose(usable, gradient, torch.zeros_like(gradient))


def boundary_distance(value: PerSample, normal: Images, norm: Norm) -> PerSample:
    """Return |value| / ||normal||_q, the distance to the plane in the norm; q is the norm's dual."""
    order = {"linf": 1, "l2": 2, "l1": math.inf}[norm]
    slope: PerSample = normal.flatten(1).norm(p=order, dim=1)
    return value.abs() / (slope + 1e-12)
