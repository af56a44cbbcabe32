"""Mean accuracy over classes under corruption: the mean over severities, then over corruptions."""

from robustbench_kpca.metrics.shared.pixels import mean_accuracy
from robustbench_kpca.metrics.shared.segmentation import of_corrupted

METRIC = of_corrupted(
    mean_accuracy, name="corrupted_mean_accuracy", title="Mean accuracy over classes under corruption"
)
