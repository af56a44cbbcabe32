"""The first samples of an attack, kept to look at while it goes on and afterwards. No record names them; no torch."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from robustbench_kpca._core.errors import BadInputError, UnfitError, reason_of
from robustbench_kpca._core.files import read_file
from robustbench_kpca.records.images import DAMAGE, KeptImages, read_arrays
from robustbench_kpca.records.spec import Spec

SUFFIX = ".samples.npz"
BYTES = 8 * 2**20
"""Of their images, before compression: two bytes a number. Fewer samples are kept where they would take more."""
CLASSES = 5
"""Largest logits that are kept of each image."""
_ARRAYS = ("about", "clean", "change", "scale", "classes", "logits")


@dataclass(frozen=True)
class FirstSamples:
    """Some samples of an attack, for eyes: rounded, where the images beside a record are exact.

    Attributes:
        spec: of the record.
        rows: of outcomes, each with the id of its sample.
        clean: images as uint8, shape (rows, channels, height, width).
        change: worst - clean as int8, divided by `scale`, shape of `clean`.
        scale: largest change of an image, divided by 127, shape (rows,).
        classes: with the largest logits of the clean and of the worst image, shape (rows, classes).
        logits: of these classes, shape (rows, 2, classes).
    """

    spec: Spec
    rows: tuple[dict[str, Any], ...]
    clean: NDArray[np.uint8]
    change: NDArray[np.int8]
    scale: NDArray[np.float32]
    classes: NDArray[np.int32]
    logits: NDArray[np.float32]

    def images(self) -> KeptImages:
        """Return clean and worst images."""
        clean = self.clean.astype(np.float32) / np.float32(255)
        worst = clean + self.change * self.scale[:, None, None, None]
        return KeptImages(tuple(row["sample"] for row in self.rows), clean, worst.astype(np.float32))

    @classmethod
    def joined(cls, parts: Sequence["FirstSamples"]) -> "FirstSamples":
        """Join what several processes have kept of one record."""
        arrays = [np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS[1:]]
        return cls(parts[0].spec, tuple(row for part in parts for row in part.rows), *arrays)

    def to_file(self) -> bytes:
        """Return the bytes of the file."""
        about = {"spec": self.spec.model_dump(mode="json"), "rows": self.rows}
        arrays = {name: getattr(self, name) for name in _ARRAYS[1:]}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, about=np.array(json.dumps(about)), **arrays)
        return buffer.getvalue()


def load_first_samples(path: Path) -> FirstSamples:
    """Read a file of first samples.

    Raises:
        BadInputError: missing, damaged, or larger than any file this package writes.
    """
    content = read_file(path, "file of samples", 2 * BYTES)
    try:
        about, *arrays = read_arrays(content, _ARRAYS, 2 * BYTES)
        stated = json.loads(str(about))
        spec, rows = Spec.model_validate(stated["spec"]), tuple(stated["rows"])
        made = FirstSamples(spec, rows, *arrays)
        shapes = [len(rows), *made.clean.shape[1:]]
        if not (
            list(made.clean.shape) == list(made.change.shape) == shapes
            and made.clean.ndim == 4
            and made.scale.shape == (len(rows),)
            and made.classes.ndim == 2
            and made.logits.shape == (len(rows), 2, made.classes.shape[1])
            and all({"sample", "label", "prediction", "broken_by"} <= row.keys() for row in rows)
        ):
            raise UnfitError("shapes do not fit")
    except (*DAMAGE, AttributeError, ValidationError) as error:
        why = "of another version" if isinstance(error, ValidationError) else reason_of(error)
        raise BadInputError(f"{path} holds no samples ({why})", fix="delete it") from None
    return made
