"""Records in the formats of other tools: csv and json."""

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import inert
from robustbench_kpca.records.collection import By, Records

FORMATS = ("csv", "json")


def export(records: Records, to: str, by: By = "record") -> str:
    """Return the text of a file in a format; see `Records.to_frame` for the columns and `by`.

    Raises:
        BadInputError: an unknown format.
    """
    table = records.to_frame(by)
    if to == "csv":
        texts = table.select_dtypes(exclude="number")
        table[texts.columns] = texts.map(inert)
        return str(table.rename(columns=inert).to_csv(index=False, lineterminator="\n"))
    if to == "json":
        return str(table.to_json(orient="records", indent=1, double_precision=15)) + "\n"
    raise BadInputError(f"format '{to}'", expected=f"one of {', '.join(FORMATS)}")
