"""ImageNet-Sketch: 50,889 black and white drawings of ImageNet's 1,000 classes.

Wang et al. (2019), arXiv:1905.13549.
"""

from robustbench_kpca.data.sets._imagenet_files import collection

load = collection("imagenet-sketch", 50_889)
