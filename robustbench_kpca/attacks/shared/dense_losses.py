"""Losses that attacks on segmentation models maximise; their gradients come mainly from still-correct pixels.

With CE_i the cross-entropy of pixel i, q_i the probability of its label, n the number of pixels with a label, n_c the
number of those of class c, and K the number of classes with n_c > 0:

    balanced         (1 - share) / n sum_{i right} CE_i + share / n sum_{i wrong} CE_i
    masked           1 / n sum_{i right} CE_i
    masked by class  1 / K sum_c 1 / n_c sum_{i right, of class c} CE_i
    Jensen-Shannon   1 / n sum_i [ log 2 + (q_i log q_i - (1 + q_i) log(1 + q_i)) / 2 ]

`balanced`: Gu, Zhao, Tresp & Torr (2022), "SegPGD", arXiv:2207.12391. The others: Croce, Singh & Hein (2024), "Towards
Reliable Evaluation and Fast Training of Robust Semantic Segmentation Models", arXiv:2306.12941; their program
weighs classes by their frequency in the data set, `masked by class` by their frequency in the image, which needs no
other image. An image with a single label counts as one pixel.
"""

from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor

from robustbench_kpca.attacks.shared.losses import cross_entropy, mean, pixelwise_cross_entropy
from robustbench_kpca.types import IGNORE, Labels, Logits, PerSample

_LOG_2 = float(torch.tensor(2.0).log())
DenseLossName: TypeAlias = Literal["ce_masked", "ce_masked_by_class", "js"]


def dense_objective(name: DenseLossName, logits: Logits, labels: Labels) -> PerSample:
    """Compute a loss with the gradient of the named loss and the value of the mean cross-entropy over all pixels.

    For searches that compare values between iterations, as SEA does. The value of a masked loss would not do: it falls
    whenever a pixel becomes wrong, which is the attacker's aim.
    """
    loss = {"ce_masked": masked, "ce_masked_by_class": masked_by_class, "js": jensen_shannon}[name](logits, labels)
    return cross_entropy(logits, labels).detach() + (loss - loss.detach())


def balanced(logits: Logits, labels: Labels, share: PerSample) -> PerSample:
    """Compute the mean cross-entropy with weight `share` (per sample, 0 to 1) for wrong pixels, else 1 - `share`."""
    part = share.to(logits.dtype).view(-1, *[1] * (labels.ndim - 1))
    weights = torch.where(_right(logits, labels), 1 - part, part)
    return mean(weights * pixelwise_cross_entropy(logits, labels), labels)


def masked(logits: Logits, labels: Labels) -> PerSample:
    """Compute the cross-entropy of the right pixels, divided by the number of all pixels."""
    return mean(_right(logits, labels) * pixelwise_cross_entropy(logits, labels), labels)


def masked_by_class(logits: Logits, labels: Labels) -> PerSample:
    """Compute `masked` with the same weight for every class in the image."""
    flat, labelled = labels[:, None].flatten(1).clamp_min(0), (labels != IGNORE)[:, None].flatten(1)
    losses = (_right(logits, labels) * pixelwise_cross_entropy(logits, labels))[:, None].flatten(1)
    pixels = losses.new_zeros(len(labels), logits.shape[1]).scatter_add_(1, flat, labelled.to(losses.dtype))
    total = (losses * labelled / pixels.gather(1, flat).clamp_min(1)).sum(1)
    return total / (pixels > 0).sum(1).clamp_min(1)


def jensen_shannon(logits: Logits, labels: Labels) -> PerSample:
    """Compute the divergence between probabilities and label: 0 if q_i = 1, log 2 if q_i = 0.

    Its gradient vanishes as a pixel becomes wrong, so wrong pixels need no mask.
    """
    log_q = -pixelwise_cross_entropy(logits, labels)
    q = log_q.exp()
    return mean(_LOG_2 + (q * log_q - (1 + q) * torch.log1p(q)) / 2, labels)


def _right(logits: Logits, labels: Labels) -> Bool[Tensor, " batch *place"]:
    return logits.argmax(1) == labels
