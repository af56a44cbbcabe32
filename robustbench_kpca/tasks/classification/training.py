"""Training of classifiers: cross-entropy loss, scored by accuracy."""

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.tasks.training import Counts, Training, accuracy
from robustbench_kpca.types import Logits, PerSample


class ClassificationTraining(Training):
    """One label per image, or one distribution over the classes per image."""

    def losses(self, logits: Logits, targets: Tensor, smoothing: float) -> PerSample:
        """Return the cross-entropy of each image."""
        return F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)

    def score(self, counts: Counts, loss: float) -> dict[str, float]:  # noqa: ARG002
        """Return the accuracy."""
        return {"accuracy": accuracy(counts)} if counts[1].sum() else {}
