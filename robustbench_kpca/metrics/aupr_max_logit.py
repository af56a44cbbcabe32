"""AUPR of the largest logit (Hendrycks et al. 2022, arXiv:1911.11132), with unknown classes positive."""

from robustbench_kpca.metrics.shared.unknown import ranking_metric

METRIC = ranking_metric("average_precision", "max_logit", name="aupr_max_logit", title="AUPR, max logit")
