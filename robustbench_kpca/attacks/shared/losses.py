"""Losses that attacks maximise: one value per sample, from logits and labels.

A segmentation model gives logits (batch, class, height, width) for labels (batch, height, width): its loss
per sample is the mean over the pixels whose label is not IGNORE, and 0 if there are none.
"""

from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.types import IGNORE, Labels, Logits, PerSample

LossName: TypeAlias = Literal["ce", "dlr", "pm", "ce_targeted", "dlr_targeted"]


def objective(name: LossName, logits: Logits, labels: Labels, targets: Int64[Tensor, " batch"]) -> PerSample:
    """Compute the loss that APGD maximises, per sample.

    `ce` is the cross-entropy, `dlr` the difference of logits ratio, `pm` the probability margin; with a target t,
    `ce_targeted` is -CE(z, t) and `dlr_targeted` the targeted ratio. The ratios need the three or four largest logits:
    with fewer than 3 classes `dlr` is replaced by `ce`, with fewer than 4 `dlr_targeted` by `ce_targeted`.
    """
    classes = logits.shape[1]
    if name == "dlr" and classes >= 3:
        return dlr(logits, labels)
    if name == "dlr_targeted" and classes >= 4:
        return dlr_targeted(logits, labels, targets)
    if name == "pm":
        return probability_margin(logits, labels)
    if name.endswith("_targeted"):
        return -cross_entropy(logits, targets)
    return cross_entropy(logits, labels)


def cross_entropy(logits: Logits, labels: Labels) -> PerSample:
    """Compute -log softmax(z)_y per sample."""
    return mean(pixelwise_cross_entropy(logits, labels), labels)


def margin(logits: Logits, labels: Labels) -> PerSample:
    """Compute the margin z_y - max_{k != y} z_k per sample; negative if misclassified."""
    return mean(pixelwise_margin(logits, labels), labels)


Pixelwise: TypeAlias = Float[Tensor, " batch *place"]


def pixelwise_cross_entropy(logits: Logits, labels: Labels) -> Pixelwise:
    """Compute -log softmax(z)_y of every pixel; 0 for pixels labelled IGNORE."""
    return F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORE)


def pixelwise_margin(logits: Logits, labels: Labels) -> Pixelwise:
    """Compute the margin of every pixel; for pixels labelled IGNORE, that of class 0."""
    classes = labels.clamp_min(0)[:, None]
    of_label = logits.gather(1, classes)[:, 0]
    without_label = logits.scatter(1, classes, -torch.inf)
    return of_label - without_label.amax(1)


def mean(values: Pixelwise, labels: Labels) -> PerSample:
    """Average over the pixels whose label is not IGNORE; return one value per whole image unchanged."""
    if values.ndim == 1:
        return values
    counted = labels != IGNORE
    total = torch.where(counted, values, 0).flatten(1).sum(1)
    return total / counted.flatten(1).sum(1).clamp_min(1)


def difference(logits: Logits, labels: Labels, targets: Labels) -> PerSample:
    """Compute z_t - z_y per sample; positive if the target's logit exceeds the label's."""
    return (logits.gather(1, targets[:, None]) - logits.gather(1, labels[:, None]))[:, 0]


def dlr(logits: Logits, labels: Labels) -> PerSample:
    """Compute the difference of logits ratio, -(z_y - max_{k != y} z_k) / (z_(1) - z_(3)), per sample.

    z_(i) is the i-th largest logit, and 1e-12 is added to the denominator. Shifting or scaling all logits
    does not change it. Croce & Hein (2020), arXiv:2003.01690, section 4. Needs 3 classes.
    """
    largest = logits.topk(3, dim=1).values
    return mean(-pixelwise_margin(logits, labels) / (largest[:, 0] - largest[:, 2] + 1e-12), labels)


def probability_margin(logits: Logits, labels: Labels) -> PerSample:
    """Compute max_{k != y} p_k - p_y per sample, with p = softmax(z).

    The loss of the probability margin attack (PMA): Xie, Zheng, Huang, Ye & Ma (2024), arXiv:2411.15210.
    """
    return -margin(logits.softmax(1), labels)


def dlr_targeted(logits: Logits, labels: Labels, targets: Labels) -> PerSample:
    """Compute (z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2) per sample; otherwise as `dlr`. Needs 4 classes."""
    largest = logits.topk(4).values
    spread = largest[:, 0] - 0.5 * (largest[:, 2] + largest[:, 3])
    return difference(logits, labels, targets) / (spread + 1e-12)


def runners_up(logits: Logits, labels: Labels, count: int) -> Int64[Tensor, "batch target"]:
    """Return the `count` classes with the largest logits other than the label; if fewer exist, the last repeats."""
    order = logits.scatter(1, labels[:, None], -torch.inf).argsort(dim=1, descending=True, stable=True)
    return order[:, torch.arange(count, device=order.device).clamp(max=logits.shape[1] - 2)]
