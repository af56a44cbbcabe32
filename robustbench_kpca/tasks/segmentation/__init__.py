"""Semantic segmentation: images of any size with a label for every pixel ("scenes")."""

from robustbench_kpca.records.table import COUNTS, ColumnType, Table
from robustbench_kpca.tasks.task import Score, Task

_PIXELS: dict[str, ColumnType] = {
    "class": "int",  # -1: the row for all classes together
    "intersection": "int",  # number of pixels of the class that are predicted as this class
    "truth": "int",  # number of pixels of the class
    "predicted": "int",  # number of pixels predicted as the class; pixels labelled IGNORE are excluded everywhere
}
# One row for each class that occurs in the mask or in the prediction of an image.
_CELLS: dict[str, ColumnType] = {"sample": "str", "corruption": "str", "severity": "int", **_PIXELS}
# In addition one row of class -1 per picture, with sums over classes; passes are counted in the row of picture 0.
_ATTACK: dict[str, ColumnType] = {
    "sample": "str",
    "picture": "int",  # 0: the clean image; k: the image with the fewest correct pixels found by stage k of the attack
    **_PIXELS,
    "attack": "str",  # the attack that found the picture
    "linf": "float",  # norm of the perturbation, in pixel space
    "l2": "float",
    **dict.fromkeys(COUNTS, "int"),
}
_COLUMNS = {"clean": _CELLS, "corruption": _CELLS, "attack": _ATTACK}

TASK = Task(
    name="segmentation",
    unit="pixel",
    tables={kind: Table("segmentation", kind, columns) for kind, columns in _COLUMNS.items()},
    scores={"accuracy": Score("pixel accuracy"), "miou": Score("mIoU")},
    compute_at=f"{__name__}.compute:COMPUTE",
    pages_at=f"{__name__}.pages:PAGES",
)
