"""Pixel accuracy under corruption: the mean over severities, then over corruptions."""

from robustbench_kpca.metrics.shared.pixels import pixel_accuracy
from robustbench_kpca.metrics.shared.segmentation import of_corrupted

METRIC = of_corrupted(pixel_accuracy, name="corrupted_pixel_accuracy", title="Pixel accuracy under corruption")
