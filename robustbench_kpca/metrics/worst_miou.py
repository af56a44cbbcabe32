"""Worst-case mIoU: over the images, one of each, that together make it low: the number that SEA reports."""

from robustbench_kpca.metrics.shared.pixels import miou, worst_for_miou
from robustbench_kpca.metrics.shared.segmentation import of_attacked

METRIC = of_attacked(miou, worst_for_miou, name="worst_miou", title="Worst-case mIoU")
