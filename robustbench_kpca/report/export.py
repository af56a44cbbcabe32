"""Records in the formats of other tools: csv, json, and RobustBench's file about a model on ImageNet-C."""

import json
from collections.abc import Sequence
from typing import Any, Literal

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import inert
from robustbench_kpca.records.collection import By, Records
from robustbench_kpca.records.record import Record


def export(records: Records, to: Literal["csv", "json"], by: By = "record") -> str:
    """Return the text of a file in a format; see `Records.to_frame` for the columns and `by`."""
    table = records.to_frame(by)
    if to == "csv":
        texts = table.select_dtypes(exclude="number")
        table[texts.columns] = texts.map(inert)
        return str(table.rename(columns=inert).to_csv(index=False, lineterminator="\n"))
    return str(table.to_json(orient="records", indent=1, double_precision=15)) + "\n"


_FIELDS = {"imagenet_c": "", "imagenet_3dcc": "_3d"}
"""What ends the names of its fields, by the set of pictures."""
_CLEAN = ("imagenet", "imagenet-c")


def entry(records: Sequence[Record]) -> str:
    """Return RobustBench's file about the one model of these records, `model_info/imagenet/corruptions/NAME.json`.

    Croce et al. (2021), arXiv:2010.09670. Its writer (release 1.1.1, `robustbench.utils.update_json`) spells percent as
    text with two digits. Its mCE is ours, but for AlexNet's errors: of 5,000 images there, the published ones here.
    The fields that records cannot know, such as authors and venue, are empty.

    Args:
        records: of the protocol `imagenet-c`, and if there are, of `imagenet-3dcc` and of `clean` on ImageNet.

    Raises:
        BadInputError: several models, none of the stored ImageNet-C, or several records of one set.
    """
    models = sorted({record.spec.model.name for record in records})
    stored = [record for record in records if record.spec.protocol.resolved.get("mode") == "stored"]
    by_set = {_set_of(record): record for record in stored if _set_of(record) in _FIELDS}
    if len(models) != 1 or "imagenet_c" not in by_set or len(by_set) < sum(_set_of(one) in _FIELDS for one in stored):
        raise BadInputError(
            f"{len(records)} records of {', '.join(models) or 'no model'} for one file of RobustBench",
            expected="one model, with one record of protocol imagenet-c (stored pictures)",
            fix="give the files of its records",
        )
    scores: dict[str, str] = {}
    for of_set, record in by_set.items():
        scores |= _percent(record, "corruption_accuracy", f"corruptions_acc{_FIELDS[of_set]}")
        scores |= _percent(record, "mce", f"corruptions_mce{_FIELDS[of_set]}")
    clean = [one for one in records if one.spec.data.name in _CLEAN and "clean_accuracy" in one.metrics]
    content: dict[str, Any] = dict.fromkeys(("link", "name", "authors"), "")
    content |= {"additional_data": None, "number_forward_passes": by_set["imagenet_c"].spec.protocol.resolved["draws"]}
    content |= {"dataset": "imagenet", "venue": "", "architecture": models[0], "eps": None}
    content |= _percent(clean[0], "clean_accuracy", "clean_acc") if clean else {"clean_acc": ""}
    return json.dumps(content | {"reported": ""} | scores, indent=2) + "\n"


def _set_of(record: Record) -> str:
    return str(record.spec.protocol.resolved.get("profile"))


def _percent(record: Record, metric: str, field: str) -> dict[str, str]:
    if metric not in record.metrics:
        return {}
    return {field: f"{100 * record.metrics[metric].value:.2f}"}
