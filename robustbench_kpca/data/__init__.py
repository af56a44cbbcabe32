"""Data sets: images with labels or masks, with stable ids and a digest. Each data set is one file in `sets/`."""

from robustbench_kpca._core.registry import Family

DATASETS = Family("data set", f"{__name__}.sets", "load", separator="-", needs=("__call__",))
