"""What happened to every sample, as columns: every metric can be recomputed from these without model or torch."""

import csv
import gzip
import io
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.files import sha256

Kind = Literal["clean", "attack", "corruption", "shift", "ood", "segmentation", "segmentation-attack"]
Column = NDArray[Any]

_TYPES: dict[str, type] = {
    "sample": str,  # the data set's own id
    "label": int,  # for "ood": 1 for an image of no known class, else 0
    "corruption": str,  # "none" at severity 0: the image as it is
    "severity": int,
    "class": int,  # of pixels; -1: a row about the whole image
    "picture": int,  # 0: the image as it is; k: the one with the fewest right pixels that stage k of the attack found
    "hits": int,  # pixels of the class that are predicted as it
    "truth": int,  # pixels of the class
    "predicted": int,  # pixels predicted as the class (those of no known class count nowhere)
    "clean_prediction": int,  # before the attack
    "prediction": int,  # class with the largest logit; under attack, of the worst image found
    "rank": int,  # classes ranked above the label: 0 is right, <= 4 is right in the top 5
    "confidence": float,  # largest softmax probability
    "unmasked_prediction": int,  # class with the largest logit of all, where prediction is among some classes only
    "max_log_softmax": float,  # logarithm of the confidence: ties less
    "max_logit": float,
    "log_sum_exp": float,  # of the logits: minus the energy of Liu et al. 2020
    "broken_by": str,  # "clean" (was wrong already), "clamp" (only as given), the attack that broke it, or "" (stands)
    "attack": str,  # that found the picture
    "linf": float,  # size of the perturbation of the worst image found (or of the picture), in pixel space
    "l2": float,
    "forwards": int,  # passes the attack spent on this sample, beyond the one clean forward
    "backwards": int,
    "retracted": int,  # iterates seen misclassified that a plain forward pass classified correctly
    "nonfinite": int,  # proposals answered with NaN or infinite logits
    "zero_gradients": int,  # gradients that were zero everywhere
}
COUNTS = ("forwards", "backwards", "retracted", "nonfinite", "zero_gradients")  # they add up over attacks
_DAMAGE = (OSError, EOFError, ValueError, IndexError, StopIteration, OverflowError, csv.Error, zlib.error)
COLUMNS: dict[Kind, tuple[str, ...]] = {
    "clean": ("sample", "label", "prediction", "rank", "confidence"),
    "attack": (
        "sample", "label", "clean_prediction", "prediction", "broken_by", "linf", "l2",
        *COUNTS,
    ),
    "corruption": ("sample", "label", "corruption", "severity", "prediction", "rank"),  # 75 rows a sample: kept lean
    "shift": ("sample", "label", "prediction", "rank", "confidence", "unmasked_prediction"),
    "ood": ("sample", "label", "max_log_softmax", "max_logit", "log_sum_exp"),
    # sparse: one row for each class that an image has or is said to have
    "segmentation": ("sample", "corruption", "severity", "class", "hits", "truth", "predicted"),
    # one row of class -1 for each picture of an image, too, with sums over classes; what was spent is with picture 0
    "segmentation-attack": (
        "sample", "picture", "class", "hits", "truth", "predicted", "attack", "linf", "l2", *COUNTS,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Outcomes:
    """Per-sample columns of one evaluation; rows are sorted by the data set's order (and cell)."""

    kind: Kind
    columns: Mapping[str, Column]

    @classmethod
    def from_rows(cls, kind: Kind, rows: Sequence[Mapping[str, Any]]) -> "Outcomes":
        """Gather dictionaries with exactly the columns of `kind`."""
        return cls.from_columns(kind, {name: [row[name] for row in rows] for name in COLUMNS[kind]})

    @classmethod
    def from_columns(cls, kind: Kind, columns: Mapping[str, Sequence[Any] | Column]) -> "Outcomes":
        """Gather columns of equal length, exactly those of `kind`."""
        return cls(kind, {name: _column(name, columns[name]) for name in COLUMNS[kind]})

    def __len__(self) -> int:
        return len(self.columns["sample"])

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per row: what `from_rows` was given."""
        columns = [column.tolist() for column in self.columns.values()]
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*columns, strict=True)]

    def where(self, mask: NDArray[np.bool_]) -> "Outcomes":
        """Keep the rows where `mask` is true."""
        return Outcomes(self.kind, {name: column[mask] for name, column in self.columns.items()})

    def sorted(self) -> "Outcomes":
        """Order the rows by sample."""
        order = np.argsort(self["sample"], kind="stable")
        return Outcomes(self.kind, {name: column[order] for name, column in self.columns.items()})

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether each row's (final) prediction is its label."""
        if self.kind == "attack":
            return np.asarray(self["broken_by"] == "")
        return np.asarray(self["prediction"] == self["label"])

    def to_csv(self) -> bytes:
        """Return the canonical text: header, line feeds, floats with the nine digits that single precision needs."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        formatted = [
            [f"{value:.9g}" for value in column] if _TYPES[name] is float else column.tolist()
            for name, column in self.columns.items()
        ]
        writer.writerows(zip(*formatted, strict=True))
        return text.getvalue().encode()

    def digest(self) -> str:
        """SHA-256 of the canonical text (not of the compressed file)."""
        return sha256(self.to_csv())

    def to_file(self) -> bytes:
        """Bytes of the stored file, `.csv.gz`, with no time stamp in them."""
        return gzip.compress(self.to_csv(), mtime=0)

    @classmethod
    def from_file(cls, data: bytes, where: str) -> "Outcomes":
        """Parse a stored file.

        Raises:
            BadInputError: truncated, or not an outcomes table.

        """
        try:
            table = list(csv.reader(io.StringIO(gzip.decompress(data).decode(), newline="")))
            header, body = tuple(table[0]), table[1:]
            kind = next(kind for kind, columns in COLUMNS.items() if columns == header)
            cells = list(zip(*body, strict=True)) if body else [()] * len(header)
            return cls(kind, {name: _column(name, values) for name, values in zip(header, cells, strict=True)})
        except _DAMAGE as error:
            raise BadInputError(
                f"{where} is no whole outcomes table ({type(error).__name__})", fix="evaluate again"
            ) from None


def _column(name: str, values: Sequence[Any] | Column) -> Column:
    kind = _TYPES[name]
    if kind is str:
        return np.array(values, dtype=object)
    if kind is int:
        return np.array(values if isinstance(values, np.ndarray) else [int(value) for value in values], dtype=np.int64)
    return np.array(values, dtype=np.float32).astype(np.float64)
