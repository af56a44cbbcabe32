"""Training of segmenters: cross-entropy per pixel, scored by pixel accuracy and mIoU."""

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.metrics.shared.pixels import miou
from robustbench_kpca.tasks.training import Counts, Training, accuracy
from robustbench_kpca.types import IGNORE, Logits, PerSample


class SegmentationTraining(Training):
    """One label per pixel."""

    def losses(self, logits: Logits, targets: Tensor, smoothing: float) -> PerSample:
        """Return the sum of the cross-entropy over the pixels of each image that are not IGNORE.

        Args:
            logits: shape (batch, classes, height, width).
            targets: shape (batch, height, width): classes, or IGNORE.
            smoothing: label smoothing, in [0, 1).

        """
        losses = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing, ignore_index=IGNORE)
        return losses.flatten(1).sum(1)

    def score(self, counts: Counts, loss: float) -> dict[str, float]:  # noqa: ARG002
        """Return pixel accuracy and mIoU over all images together; empty if there are no labels."""
        if not counts[1].sum():
            return {}
        return {"accuracy": accuracy(counts), "miou": float(miou(*counts.numpy()))}
