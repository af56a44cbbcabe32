"""ImageNet-R: 30,000 paintings, cartoons and other renditions of 200 ImageNet classes.

Hendrycks et al. (2021), arXiv:2006.16241.
"""

from robustbench_kpca.data.sets._imagenet_files import collection

load = collection("imagenet-r", 30_000)
