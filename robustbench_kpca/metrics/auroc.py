"""AUROC of max softmax: how often an image of an unknown class is less sure than one of a known class."""

from robustbench_kpca.metrics.shared.unknown import ranking_metric

METRIC = ranking_metric("auroc", "max_log_softmax", name="auroc", title="AUROC, max softmax")
