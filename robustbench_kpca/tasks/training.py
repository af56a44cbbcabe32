"""Interface `Training`: the training loss of a task and its scores on held-out data."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca.types import IGNORE, Labels, Logits, PerSample

Counts = Float[Tensor, "3 classes"]
"""Per class: correct predictions, labels, predictions. Counts of batches and processes can be added."""


class Training(ABC):
    """The loss and the scores of a task."""

    @abstractmethod
    def losses(self, logits: Logits, targets: Tensor, smoothing: float) -> PerSample:
        """Return one loss per sample: the sum of the cross-entropy over its labels, without IGNORE.

        Args:
            logits: shape (batch, classes, ...).
            targets: labels of the task. If a sample has one label, they can also be distributions over the classes, of
                shape (batch, classes), as produced by mixup.
            smoothing: label smoothing, in [0, 1).
        """

    @abstractmethod
    def score(self, counts: Counts, loss: float) -> dict[str, float]:
        """Return the scores by their names in `Task.scores`; empty if there are no labels.

        Args:
            counts: over all labels.
            loss: the mean cross-entropy of a label, in nats.
        """

    def counts(self, logits: Logits, labels: Labels) -> Counts:
        """Count labels and predictions, in double precision; places labelled IGNORE are excluded."""
        classes, labelled = logits.shape[1], labels != IGNORE
        truth, predicted = labels[labelled], logits.argmax(1)[labelled]
        parts = (truth[truth == predicted], truth, predicted)
        return torch.stack([part.bincount(minlength=classes) for part in parts]).double()


def accuracy(counts: Counts) -> float:
    """Return the fraction of correct predictions."""
    right, truth, _ = counts
    return float(right.sum() / truth.sum())
