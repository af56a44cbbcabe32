"""Mean accuracy: the share of a class's pixels that are classified correctly, averaged over classes."""

from robustbench_kpca.metrics.shared.pixels import mean_accuracy
from robustbench_kpca.metrics.shared.segmentation import of_clean

METRIC = of_clean(mean_accuracy, name="mean_accuracy", title="Mean accuracy over classes")
