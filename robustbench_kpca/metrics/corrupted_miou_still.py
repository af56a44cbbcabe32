"""mIoU under the corruptions that leave everything in its place: without `elastic_transform` and `zoom_blur`.

Those two move what is seen while masks stay as they are, as is the convention. `glass_blur` stays in: it swaps pixels
with neighbours a few pixels away, at random, and moves no object.
"""

from robustbench_kpca.metrics.shared.pixels import miou
from robustbench_kpca.metrics.shared.segmentation import MOVING, of_corrupted

METRIC = of_corrupted(miou, MOVING, name="corrupted_miou_still", title="mIoU under corruptions that move nothing")
