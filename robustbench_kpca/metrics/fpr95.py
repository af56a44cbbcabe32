"""FPR95 of max softmax: known images taken for unknown where 95 % of the unknown are found (Hendrycks' definition)."""

from robustbench_kpca.metrics.shared.unknown import ranking_metric

METRIC = ranking_metric("fpr_at_tpr", "max_log_softmax", name="fpr95", title="FPR95, max softmax", lower_is_better=True)
