"""What attackers increase: one loss per sample, from logits and labels."""

import torch
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.types import Labels, Logits, PerSample


def cross_entropy(logits: Logits, labels: Labels) -> PerSample:
    """Compute -log softmax(z)_y per sample."""
    return F.cross_entropy(logits, labels, reduction="none")


def margin(logits: Logits, labels: Labels) -> PerSample:
    """Compute z_y - max_{k != y} z_k per sample: below zero is misclassified."""
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return own - others.amax(1)
