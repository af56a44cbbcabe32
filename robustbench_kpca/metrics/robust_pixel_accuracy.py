"""Robust pixel accuracy: the share of pixels that are classified correctly in the worst image the attack found."""

from robustbench_kpca.metrics.shared.pixels import pixel_accuracy
from robustbench_kpca.metrics.shared.segmentation import of_attacked

METRIC = of_attacked(pixel_accuracy, name="robust_pixel_accuracy", title="Robust pixel accuracy")
