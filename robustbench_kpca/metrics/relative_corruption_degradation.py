"""Relative corruption degradation (rCD): the loss of mIoU under each corruption as a fraction of a reference model's.

Kamann & Rother (2020, arXiv:1908.05005); equations in `_segmentation`. Only a board has a reference model.
"""

from robustbench_kpca.metrics.shared.segmentation import Degradation

METRIC = Degradation.by_reference(name="relative_corruption_degradation", title="Relative CD", relative=True)
