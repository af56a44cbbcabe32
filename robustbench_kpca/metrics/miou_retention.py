"""Retention of mIoU: under corruption, as a fraction of the clean one (FAN; Zhou et al. 2022, arXiv:2204.12451)."""

from robustbench_kpca.metrics.shared.pixels import miou
from robustbench_kpca.metrics.shared.segmentation import of_retained

METRIC = of_retained(miou, name="miou_retention", title="Retention of mIoU (corrupted / clean)")
