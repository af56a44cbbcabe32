"""A page that shows single samples of records: images, predictions, what broke them.

One file that makes no request to anywhere: images are PNGs inside it, and texts are data that the script shows as text.
"""

import base64
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.web import asset
from robustbench_kpca._core.web.as_html import html
from robustbench_kpca._core.web.document import Document, Widget
from robustbench_kpca.records.images import KeptImages, load_images
from robustbench_kpca.records.record import Record, find_records
from robustbench_kpca.records.spec import Spec
from robustbench_kpca.records.table import UNATTACKED
from robustbench_kpca.report.consistency import load_consistent

MOST = 500
"""Samples on a page."""
IMAGE_BYTES = 24_000_000
"""Bytes of images on a page."""
SIDE = 224
"""Largest side of an image on the page, in pixels; larger ones are made smaller."""
_SHOWN = ("clean_prediction", "prediction", "rank", "confidence", "broken_by", "linf", "l2", "forwards", "backwards")


@dataclass(frozen=True)
class Shown:
    """A record on the page.

    Attributes:
        rows: its outcomes by sample.
        images: kept beside it.
    """

    spec: Spec
    rows: Mapping[str, Mapping[str, Any]]
    images: KeptImages | None = None

    @classmethod
    def of(cls, record: Record, images: KeptImages | None = None) -> "Shown | None":
        """Show a record; None if it has not one prediction a sample."""
        rows = {row["sample"]: row for row in record.outcomes.rows()}
        if not {"prediction", "label"} <= set(record.outcomes.columns) or len(rows) < len(record.outcomes):
            return None
        return cls(record.spec, rows, images)

    @property
    def attack(self) -> bool:
        """Whether it is of an attack."""
        return self.spec.protocol.resolved.get("kind") == "attack"


def load_shown(places: Iterable[Path]) -> tuple[list[Shown], int]:
    """Return the records of files and folders, and how many of them cannot be shown.

    Raises:
        BadInputError: a folder has none; a file is no record, or not what its record was made with.
    """
    records: list[Shown | None] = []
    for path in (path for place in places for path in find_records(place)):
        record = load_consistent(path)
        images = None if record.images_file is None else load_images(path.parent, record.images_file)
        records.append(Shown.of(record, images))
    return [record for record in records if record is not None], records.count(None)


def view(records: Sequence[Shown], title: str) -> tuple[str, int]:
    """Return the page, and how many records are not on it, since they are of other data.

    Samples with images come first where there are more than `MOST`.

    Raises:
        BadInputError: no record.
    """
    data = Counter(record.spec.data.digest for record in records)
    if not data:
        raise BadInputError("no record with one prediction a sample", expected="records of clean images or of attacks")
    chosen = [record for record in records if record.spec.data.digest == data.most_common(1)[0][0]]
    page = Document(
        title,
        [Widget("viewer.html.j2", "report", {"content": _content(chosen)})],
        style=asset("report", "viewer.css"),
        script=asset("report", "viewer.js"),
    )
    return html(page), len(records) - len(chosen)


def _content(records_of_data: Sequence[Shown]) -> dict[str, Any]:
    data = records_of_data[0].spec.data
    labels = {sample: row["label"] for record in records_of_data for sample, row in record.rows.items()}
    everything = sorted(labels, key=_by_id)
    kept = {sample for record in records_of_data if record.images for sample in record.images.samples}
    samples = _choose(everything, kept)
    budget = _Budget(IMAGE_BYTES)
    clean: dict[str, str] = {}
    records = [_record(record, samples, clean, budget) for record in records_of_data]
    names = data.class_names
    return {
        "data": f"{data.name} ({data.split})",
        "total": len(everything),
        "class_names": list(names or ()),
        "samples": [{"id": sample, "label": labels[sample], "clean": clean.get(sample)} for sample in samples],
        "records": records,
        "without_images": budget.refused,
    }


def _by_id(sample: str) -> tuple[int, str]:
    return len(sample), sample


def _choose(everything: Sequence[str], kept: set[str]) -> list[str]:
    """Return at most `MOST` samples, in order: those with images first, both evenly spread."""
    if len(everything) <= MOST:
        return list(everything)
    with_images = _spread([sample for sample in everything if sample in kept], MOST)
    rest = _spread([sample for sample in everything if sample not in kept], MOST - len(with_images))
    return sorted([*with_images, *rest], key=_by_id)


def _spread(items: Sequence[str], count: int) -> list[str]:
    count = min(count, len(items))
    return [items[(2 * k + 1) * len(items) // (2 * count)] for k in range(count)]


@dataclass
class _Budget:
    """How many more bytes of images fit on the page."""

    left: int
    refused: int = 0

    def take(self, texts: Iterable[str]) -> bool:
        size = sum(map(len, texts))
        if size > self.left:
            self.refused += 1
            return False
        self.left -= size
        return True


def _record(shown: Shown, samples: Sequence[str], clean: dict[str, str], budget: _Budget) -> dict[str, Any]:
    rows = {sample: _row(row, attack=shown.attack) for sample, row in shown.rows.items()}
    if shown.images is not None and shown.spec.protocol.resolved.get("space") != "signal":
        _draw(shown.images, set(samples), rows, clean, budget)
    return {
        "model": shown.spec.model.name,
        "protocol": shown.spec.protocol.name,
        "seed": shown.spec.seed,
        "attack": shown.attack,
        "rows": [rows.get(sample) for sample in samples],
    }


def _row(row: Mapping[str, Any], *, attack: bool) -> dict[str, Any]:
    """Return what is shown of a row, and its state.

    The state is `kept`: right; `lost`: right before the attack and wrong after it; `wrong`: wrong before any attack.
    """
    columns = {name: row[name] for name in _SHOWN if name in row}
    if attack:
        broken_by = row["broken_by"]
        state = "kept" if broken_by == "" else "wrong" if broken_by in UNATTACKED else "lost"
    else:
        state = "kept" if row["prediction"] == row["label"] else "wrong"
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in columns.items()} | {
        "state": state
    }


def _draw(
    images: KeptImages, wanted: set[str], rows: dict[str, dict[str, Any]], clean: dict[str, str], budget: _Budget
) -> None:
    """Add images to the rows: the attacked one, the difference, and how much that is magnified."""
    befores, afters = images.floats()
    for sample, before, after in zip(images.samples, befores, afters, strict=True):
        if sample not in wanted or sample not in rows:
            continue
        delta = after - before
        largest = float(np.abs(delta).max())
        difference = 0.5 + delta / (2 * largest) if largest > 0 else np.full_like(delta, 0.5)
        first, second, third = (_png(image) for image in (before, after, difference))
        if budget.take([second, third] + ([] if sample in clean else [first])):
            clean.setdefault(sample, first)
            magnified = round(1 / (2 * largest), 1) if largest > 0 else 0
            rows[sample] |= {"image": second, "difference": third, "magnified": magnified}


def _png(image: NDArray[np.float32]) -> str:
    """Return an image, shape (channels, height, width) with values in [0, 1], as a data URI."""
    levels = (np.clip(np.moveaxis(image, 0, -1), 0, 1) * 255 + 0.5).astype(np.uint8)
    drawn = Image.fromarray(levels if levels.shape[2] == 3 else levels[:, :, 0])
    if max(drawn.size) > SIDE:
        drawn.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    drawn.save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
