"""ImageNet-A: 7,500 photographs of 200 ImageNet classes that a ResNet-50 misclassifies.

Hendrycks et al. (2021), arXiv:1907.07174.
"""

from robustbench_kpca.data.sets._imagenet_files import collection

load = collection("imagenet-a", 7_500)
