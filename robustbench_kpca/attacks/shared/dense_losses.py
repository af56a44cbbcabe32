"""What attackers of a segmenter increase: losses that spend their slope on the pixels that are still right.

With CE_i the cross-entropy of pixel i, q_i the probability of its label, n the number of pixels that count, n_c that of
class c among them, and K the number of classes with n_c > 0:

    balanced         (1 - share) / n sum_{i right} CE_i + share / n sum_{i wrong} CE_i
    masked           1 / n sum_{i right} CE_i
    masked by class  1 / K sum_c 1 / n_c sum_{i right, of class c} CE_i
    Jensen-Shannon   1 / n sum_i [ log 2 + (q_i log q_i - (1 + q_i) log(1 + q_i)) / 2 ]

`balanced`: Gu, Zhao, Tresp & Torr (2022), "SegPGD", arXiv:2207.12391. The others: Croce, Singh & Hein (2024), "Towards
Reliable Evaluation and Fast Training of Robust Semantic Segmentation Models", arXiv:2306.12941; their program weighs
classes by their frequency in the data set, `masked by class` by that in the image, which needs no other image. An image
with one label counts as one pixel.
"""

from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor

from robustbench_kpca.attacks.shared.losses import cross_entropy, mean, pixelwise_cross_entropy
from robustbench_kpca.types import IGNORE, Labels, Logits, PerSample

DenseLossName: TypeAlias = Literal["ce_masked", "ce_masked_by_class", "js"]


def dense_objective(name: DenseLossName, logits: Logits, labels: Labels) -> PerSample:
    """Compute what a search increases that compares its values from one iteration to the next, as SEA does.

    The slope is the named loss's, the value the plain cross-entropy over all pixels: a sum over the right pixels falls
    whenever one of them becomes wrong, which is what the attacker wants.
    """
    climbed = {"ce_masked": masked, "ce_masked_by_class": masked_by_class, "js": jensen_shannon}[name](logits, labels)
    return cross_entropy(logits, labels).detach() + (climbed - climbed.detach())


def balanced(logits: Logits, labels: Labels, share: PerSample) -> PerSample:
    """Weigh wrong pixels by `share` and right ones by 1 - `share`, one in [0, 1] a sample."""
    part = share.to(logits.dtype).view(-1, *[1] * (labels.ndim - 1))
    weights = torch.where(_right(logits, labels), 1 - part, part)
    return mean(weights * pixelwise_cross_entropy(logits, labels), labels)


def masked(logits: Logits, labels: Labels) -> PerSample:
    """Leave out the pixels that are wrong."""
    return mean(_right(logits, labels) * pixelwise_cross_entropy(logits, labels), labels)


def masked_by_class(logits: Logits, labels: Labels) -> PerSample:
    """Leave out the pixels that are wrong, and give every class of the image the same weight."""
    flat, known = labels[:, None].flatten(1).clamp_min(0), (labels != IGNORE)[:, None].flatten(1)
    losses = (_right(logits, labels) * pixelwise_cross_entropy(logits, labels))[:, None].flatten(1)
    pixels = losses.new_zeros(len(labels), logits.shape[1]).scatter_add_(1, flat, known.to(losses.dtype))
    total = (losses * known / pixels.gather(1, flat).clamp_min(1)).sum(1)
    return total / (pixels > 0).sum(1).clamp_min(1)


def jensen_shannon(logits: Logits, labels: Labels) -> PerSample:
    """Compute the divergence between the probabilities and the label: 0 if sure and right, log 2 if sure and wrong.

    Its slope vanishes as a pixel becomes wrong, so that no cut between right and wrong is needed.
    """
    log_q = -pixelwise_cross_entropy(logits, labels)
    q = log_q.exp()
    return mean(torch.log(torch.tensor(2.0)) + (q * log_q - (1 + q) * torch.log1p(q)) / 2, labels)


def _right(logits: Logits, labels: Labels) -> Bool[Tensor, " batch *place"]:
    return logits.argmax(1) == labels
