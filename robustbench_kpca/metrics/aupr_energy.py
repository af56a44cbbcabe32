"""AUPR of the energy, minus log-sum-exp of the logits (Liu et al. 2020, arXiv:2010.03759), unknown classes positive."""

from robustbench_kpca.metrics.shared.unknown import ranking_metric

METRIC = ranking_metric("average_precision", "log_sum_exp", name="aupr_energy", title="AUPR, energy")
