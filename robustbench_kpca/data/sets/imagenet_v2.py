"""ImageNet-V2: 10,000 new photographs of ImageNet's 1,000 classes; class folders are named 0 to 999.

Recht et al. (2019), arXiv:1902.10811.
"""

from robustbench_kpca.data.sets._imagenet_files import collection

load = collection("imagenet-v2", 10_000)
