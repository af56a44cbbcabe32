"""mIoU: intersection over union of each class over all images together, averaged over classes."""

from robustbench_kpca.metrics.shared.pixels import miou
from robustbench_kpca.metrics.shared.segmentation import of_clean

METRIC = of_clean(miou, name="miou", title="mIoU")
