"""The rank of a label among the logits: 0 if it has the largest, at most 4 if it is in the top 5."""

import torch

from robustbench_kpca.types import Labels, Logits


def rank_of(logits: Logits, labels: Labels) -> Labels:
    """Return per image the number of classes ranked above its label; of equal logits, the first class ranks highest."""
    own = logits.gather(1, labels[:, None])
    classes = torch.arange(logits.shape[1], device=logits.device)
    tied_before = (logits == own) & (classes < labels[:, None])
    return ((logits > own) | tied_before).sum(1)
