"""mIoU under corruption: computed in every cell on its own, then the mean over severities and over corruptions."""

from robustbench_kpca.metrics.shared.pixels import miou
from robustbench_kpca.metrics.shared.segmentation import of_corrupted

METRIC = of_corrupted(miou, name="corrupted_miou", title="mIoU under corruption")
