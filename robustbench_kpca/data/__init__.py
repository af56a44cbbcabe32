"""The data sets, one file each: images in [0, 1] with labels, stable ids and a digest."""

from robustbench_kpca.registry import Family

DATASETS = Family("data set", f"{__name__}.sets", "load")
