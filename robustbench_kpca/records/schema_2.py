"""Records of classification in schema 2 are read as records of schema 3: two fields are filled in.

Schema 3 adds the task of the data and the types of the columns. Records of segmentation are not converted: their
protocols had another kind, so their digests differ from those of the same protocols today.
"""

from typing import Any

_ATTACK = {
    "sample": "str", "label": "int", "clean_prediction": "int", "prediction": "int", "broken_by": "str",
    "linf": "float", "l2": "float", "forwards": "int", "backwards": "int", "retracted": "int", "nonfinite": "int",
    "zero_gradients": "int",
}  # fmt: skip
_RANKED = {"sample": "str", "label": "int", "prediction": "int", "rank": "int", "confidence": "float"}
_COLUMNS: dict[str, dict[str, str]] = {
    "clean": _RANKED,
    "attack": _ATTACK,
    "corruption": {
        "sample": "str", "label": "int", "corruption": "str", "severity": "int", "prediction": "int", "rank": "int",
    },
    "shift": _RANKED | {"unmasked_prediction": "int"},
    "ood": {"sample": "str", "label": "int", "max_log_softmax": "float", "max_logit": "float", "log_sum_exp": "float"},
}  # fmt: skip


def from_schema_2(content: Any) -> dict[str, Any] | None:
    """Return a record's content in schema 3, or None where it cannot be converted."""
    try:
        spec, kind = content["spec"], content["spec"]["protocol"]["resolved"]["kind"]
        data = {**spec["data"], "task": "classification"}
        # names of classes came only with segmentation, whose attacks had the same kind as classification's
        if kind not in _COLUMNS or data.get("class_names") is not None:
            return None
        file = {**content["outcomes_file"], "columns": _COLUMNS[kind]}
    except (KeyError, TypeError):
        return None
    return {**content, "schema_version": 3, "spec": {**spec, "data": data}, "outcomes_file": file}
