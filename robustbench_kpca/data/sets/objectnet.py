"""ObjectNet: 17,261 photographs of 104 ImageNet classes, of things in odd places, turned, and seen from odd sides.

Barbu et al. (2019), "ObjectNet: A Large-Scale Bias-Controlled Dataset for Pushing the Limits of Object Recognition
Models", NeurIPS. This is the part that OODRobustBench (Li et al. 2024, arXiv:2310.12793) took for ImageNet, in folders
of WordNet ids, one label an image. The whole set has 313 classes of its own and is not read. The published pictures
have a border of one red pixel: a view that crops leaves it out, one with crop 1 does not.
"""

from robustbench_kpca.data.sets._imagenet_files import collection

load = collection("objectnet", 17_261)
