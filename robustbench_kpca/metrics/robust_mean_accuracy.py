"""Robust mean accuracy over classes: of the worst image the attack found for each one, by its pixel accuracy."""

from robustbench_kpca.metrics.shared.pixels import mean_accuracy
from robustbench_kpca.metrics.shared.segmentation import of_attacked

METRIC = of_attacked(mean_accuracy, name="robust_mean_accuracy", title="Robust mean accuracy over classes")
