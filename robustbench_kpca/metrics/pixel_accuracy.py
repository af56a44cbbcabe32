"""Pixel accuracy: the share of pixels that are classified correctly, on the images as they are."""

from robustbench_kpca.metrics.shared.pixels import pixel_accuracy
from robustbench_kpca.metrics.shared.segmentation import of_clean

METRIC = of_clean(pixel_accuracy, name="pixel_accuracy", title="Pixel accuracy")
