"""Corruption degradation (CD): 1 - mIoU under each corruption as a fraction of a reference model's; then the mean.

Kamann & Rother (2020, arXiv:1908.05005); equations in `_segmentation`. Only a board has a reference model.
"""

from robustbench_kpca.metrics.shared.segmentation import Degradation

METRIC = Degradation.by_reference(name="corruption_degradation", title="CD", relative=False)
