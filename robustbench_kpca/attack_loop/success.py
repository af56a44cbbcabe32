"""What an answer of the model is worth to the attacker: on an image with one label, or with one label a pixel."""

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from robustbench_kpca.attacks.shared.losses import margin, mean, pixelwise_margin
from robustbench_kpca.types import IGNORE, Labels, Logits, Mask, PerSample

Answer: TypeAlias = int | Tensor
"""What one sample is called: a class, or a map of classes, kept in 16 bits."""


def judge(logits: Logits, labels: Labels, sign: int = 1) -> tuple[Labels, PerSample]:
    """Return prediction and score of every row; the lower the score, the better for the attacker.

    One label an image: the score is the margin times `sign`; NaN or infinite logits predict class -1 and score -inf.
    One label a pixel: a pixel whose logits are NaN or infinite predicts class -1; the score is the number of right
    pixels and a fraction between 0 and 1 that grows with the mean margin, in double precision.
    """
    finite = torch.isfinite(logits).all(1)
    prediction = torch.where(finite, logits.argmax(1), -1)
    if labels.ndim == 1:
        return prediction, torch.where(finite, sign * margin(logits, labels), -torch.inf)
    average = mean(torch.where(finite, pixelwise_margin(logits, labels), -torch.inf), labels)
    return prediction, right(prediction, labels) + 0.5 + average.double().atan() / math.pi


def right(prediction: Labels, labels: Labels) -> Int64[Tensor, " batch"]:
    """Count what is predicted as it is called: of one label an image 0 or 1, else pixels, but for those to ignore."""
    return _flat((prediction == labels) & (labels != IGNORE)).sum(1)


def beaten(prediction: Labels, aims: Labels, *, targeted: bool) -> Mask:
    """Whether a row is as the attacker wants it: nothing right or, `targeted`, the aim reached.

    An image whose one prediction is -1 always is.
    """
    reached = right(prediction, aims) > 0
    return ~reached if aims.ndim > 1 else (reached == targeted) | (prediction < 0)


def unanswered(prediction: Labels) -> Mask:
    """Whether any logit of a row was NaN or infinite."""
    return _flat(prediction < 0).any(1)


def split(rows: Labels) -> list[Answer]:
    """Give every sample what is its own."""
    return rows.tolist() if rows.ndim == 1 else [row.clone() for row in rows.to("cpu", torch.int16)]


def join(answers: Sequence[Answer], device: torch.device | None = None) -> Labels:
    """Stack what samples have."""
    maps = [answer for answer in answers if isinstance(answer, Tensor)]
    return torch.stack(maps).to(device).long() if maps else torch.tensor(answers, device=device)


def _flat(values: Shaped[Tensor, " batch *place"]) -> Shaped[Tensor, "batch size"]:
    return values[:, None].flatten(1)
