"""Data sets: images with labels or masks, with stable ids and a digest; files in `sets/`, or rows of a table."""

from robustbench_kpca._core.registry import Family
from robustbench_kpca.data.shifted_imagenet import SHIFTED

_ROWS = {name: row.what for name, row in SHIFTED.items()}
DATASETS = Family("data set", f"{__name__}.sets", "load", separator="-", needs=("__call__",), rows=_ROWS)
