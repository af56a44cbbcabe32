"""Robust mIoU: over the worst image the attack found for each one, by its pixel accuracy."""

from robustbench_kpca.metrics.shared.pixels import miou
from robustbench_kpca.metrics.shared.segmentation import of_attacked

METRIC = of_attacked(miou, name="robust_miou", title="Robust mIoU")
