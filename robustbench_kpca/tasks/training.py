"""What a task needs to be trained: the loss of a batch, and the scores on held-out data; needs torch."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca.types import IGNORE, Labels, Logits, PerSample

Counts = Float[Tensor, "3 classes"]
"""Of each class: labels that are predicted right, labels, predictions. Counts of batches and processes add up."""


class Training(ABC):
    """The loss and the scores of a task."""

    @abstractmethod
    def losses(self, logits: Logits, targets: Tensor, smoothing: float) -> PerSample:
        """Return one loss a sample: the sum of the cross-entropy over its labels that count.

        Args:
            logits: shape (batch, classes, ...).
            targets: labels, as the task has them. Where a sample has one label, they may also be a distribution over
                the classes, of shape (batch, classes), as mixup makes them.
            smoothing: of labels, in [0, 1).

        """

    @abstractmethod
    def score(self, counts: Counts) -> dict[str, float]:
        """Return the scores of held-out data, in [0, 1], by the names in `Task.scores`; empty without any label."""

    def counts(self, logits: Logits, labels: Labels) -> Counts:
        """Count labels and predictions, in double precision; labels that are IGNORE do not count."""
        classes, kept = logits.shape[1], labels != IGNORE
        truth, predicted = labels[kept], logits.argmax(1)[kept]
        parts = (truth[truth == predicted], truth, predicted)
        return torch.stack([part.bincount(minlength=classes) for part in parts]).double()


def accuracy(counts: Counts) -> float:
    """Return the share of labels that are predicted right."""
    right, truth, _ = counts
    return float(right.sum() / truth.sum())
