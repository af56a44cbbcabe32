"""AUPR of max softmax (Hendrycks & Gimpel 2017): average precision, unknown classes positive; chance is their share."""

from robustbench_kpca.metrics.shared.unknown import ranking_metric

METRIC = ranking_metric("average_precision", "max_log_softmax", name="aupr", title="AUPR, max softmax")
