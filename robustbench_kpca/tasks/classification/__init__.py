"""Image classification: one label per image."""

from robustbench_kpca.records.table import COUNTS, ColumnType, Table
from robustbench_kpca.tasks.task import Score, Task

_RANKED: dict[str, ColumnType] = {
    "sample": "str",  # the data set's own id
    "label": "int",
    "prediction": "int",  # class with the largest logit
    "rank": "int",  # number of classes ranked above the label: 0 is correct, at most 4 is correct in the top 5
    "confidence": "float",  # largest softmax probability
}
_ATTACK: dict[str, ColumnType] = {
    "sample": "str",
    "label": "int",
    "clean_prediction": "int",  # before the attack
    "prediction": "int",  # on the image that decides: the confirmed adversarial one, else the worst (or last) one found
    "rank": "int",  # as above, on the same image; number of classes if a logit is NaN or infinite
    "broken_by": "str",  # "clean" (wrong before), "clamp" (wrong when clipped), name of the attack, or "" (not broken)
    "linf": "float",  # norm of the perturbation of the worst image found, in pixel space
    "l2": "float",
    **dict.fromkeys(COUNTS, "int"),
}
_CORRUPTION: dict[str, ColumnType] = {  # few columns, because there are 75 rows per sample
    "sample": "str",
    "label": "int",
    "corruption": "str",  # "none" at severity 0: the clean image
    "severity": "int",
    "prediction": "int",
    "rank": "int",
}
_OOD: dict[str, ColumnType] = {
    "sample": "str",
    "label": "int",  # 1 for an image of an unknown class, else 0
    "max_log_softmax": "float",  # logarithm of the confidence, which has fewer ties
    "max_logit": "float",
    "log_sum_exp": "float",  # logsumexp of the logits: minus the energy of Liu et al. 2020
}
_CERTIFICATE: dict[str, ColumnType] = {
    "sample": "str",
    "label": "int",
    "prediction": "int",  # -1: the model abstains
    "votes": "int",  # of the prediction: views, pairs of masks, or draws
    "rival": "int",  # of the strongest other class, one more if it wins ties; of masks and draws: of all others
    "radius": "float",  # inside which the votes prove the prediction: side of a patch, pixels, or L2
    "certified": "int",  # 1 if that is at least what the protocol asks about, whatever the label
}
_COLUMNS: dict[str, dict[str, ColumnType]] = {
    "clean": _RANKED,
    "attack": _ATTACK,
    "attack-png": _ATTACK | {"unrounded_by": "str"},  # `broken_by` of the image before it was rounded to 8 bits
    "corruption": _CORRUPTION,
    # `prediction` is restricted to the protocol's classes, `unmasked_prediction` is over all classes
    "shift": _RANKED | {"unmasked_prediction": "int"},
    "ood": _OOD,
    "certificate": _CERTIFICATE,
}
# records of attacks made before ranks were recorded stay readable
_NEWER = {"attack": frozenset({"rank"})}

TASK = Task(
    name="classification",
    unit="image",
    tables={
        kind: Table("classification", kind.removesuffix("-png"), columns, _NEWER.get(kind, frozenset()))
        for kind, columns in _COLUMNS.items()
    },
    scores={"accuracy": Score("accuracy")},
    compute_at=f"{__name__}.compute:COMPUTE",
    pages_at=f"{__name__}.pages:PAGES",
)
