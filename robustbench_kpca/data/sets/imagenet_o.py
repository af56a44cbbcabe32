"""ImageNet-O: 2,000 images of classes that are not in ImageNet-1K, for out-of-distribution detection.

Hendrycks et al. (2021), arXiv:1907.07174. Its folders have the names of 200 ImageNet classes, but the images belong to
none of them, so they have no labels.
"""

from robustbench_kpca.data.sets._imagenet_files import collection

load = collection("imagenet-o", 2_000, classes=0)
