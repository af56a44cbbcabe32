"""Scenes: images of any size with a label for every pixel."""

from robustbench_kpca.records.outcomes import COUNTS, ColumnType, Table
from robustbench_kpca.tasks.task import Task

_PIXELS: dict[str, ColumnType] = {
    "class": "int",  # -1: a row about the whole picture
    "intersection": "int",  # pixels of the class that are predicted as it
    "truth": "int",  # pixels of the class
    "predicted": "int",  # pixels predicted as the class; those of no known class count nowhere
}
# One row for each class that a picture has or is predicted to have.
_CELLS: dict[str, ColumnType] = {"sample": "str", "corruption": "str", "severity": "int", **_PIXELS}
# Besides, one row of class -1 for each picture, with sums over classes; passes are counted with picture 0.
_ATTACK: dict[str, ColumnType] = {
    "sample": "str",
    "picture": "int",  # 0: the image as it is; k: the one with the fewest right pixels that stage k of the attack found
    **_PIXELS,
    "attack": "str",  # that found the picture
    "linf": "float",  # size of the perturbation, in pixel space
    "l2": "float",
    **dict.fromkeys(COUNTS, "int"),
}
_COLUMNS = {"clean": _CELLS, "corruption": _CELLS, "attack": _ATTACK}

TASK = Task(
    name="segmentation",
    unit="pixel",
    tables={kind: Table("segmentation", kind, columns) for kind, columns in _COLUMNS.items()},
    scores={"accuracy": "pixel accuracy", "miou": "mIoU"},
    compute_at=f"{__name__}.compute:COMPUTE",
    pages_at=f"{__name__}.pages:PAGES",
)
