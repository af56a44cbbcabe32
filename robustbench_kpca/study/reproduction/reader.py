"""Read what a run of a pack needs more than once: records, data sets and digests of weights; each is read once."""

from collections.abc import Collection
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.load import load_data
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.models.bundle import bundled, split_entry
from robustbench_kpca.models.checkpoint import parameters_sha256
from robustbench_kpca.records.record import SUFFIX, Record
from robustbench_kpca.report.matching import read


class Reader:
    """Remembers what it read; a record or a file of weights that changed is read again."""

    def __init__(self) -> None:
        self._records: dict[tuple[Path, int], Record] = {}
        self._data: dict[tuple[str, str | None], Dataset | str] = {}
        self._digests: dict[tuple[str, int], str | None] = {}

    def records(self, folder: Path, only: Collection[str] | None) -> list[Record]:
        """Return the records in a folder, which may be missing; `only`: see `report.matching.read`."""
        return read(sorted(folder.rglob(f"*{SUFFIX}")), self._records, only)

    def data(self, source: str, split: str | None) -> Dataset | str:
        """Return a data set, or the reason why it cannot be loaded."""
        key = (source, split)
        if key not in self._data:
            try:
                self._data[key] = load_data(source, split)
            except BadInputError as error:
                self._data[key] = str(error)
        return self._data[key]

    def remarks(self) -> list[tuple[str, str]]:
        """Return the remarks on the data that were loaded, each with the name and split."""
        sets = [data for data in self._data.values() if not isinstance(data, str)]
        return [(f"{data.name} ({data.split})", remark) for data in sets for remark in data.remarks]

    def digest(self, request: ModelRequest) -> str | None:
        """Return the digest of a model's parameters, as records have it; None where no file of them can be read."""
        checkpoint = request.checkpoint if request.checkpoint is not None else str(bundled().get(request.model, ""))
        file = Path(split_entry(checkpoint)[0])
        if not file.is_file():
            return None
        key = (checkpoint, file.stat().st_mtime_ns)
        if key not in self._digests:
            try:
                self._digests[key] = parameters_sha256(request.load())
            except BadInputError:  # the evaluation of the model says why
                self._digests[key] = None
        return self._digests[key]
