"""A page that shows single samples of records, also of unfinished ones: images, predictions, logits, what broke them.

One file that makes no request to anywhere: images are PNGs inside it, and texts are data that the script shows as text.
"""

import base64
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from robustbench_kpca.records.first_samples import SUFFIX, FirstSamples, load_first_samples
from robustbench_kpca.records.images import KeptImages, load_images
from robustbench_kpca.records.record import SUFFIX as RECORD
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
        rows: its outcomes by sample; of an unfinished record those of its first samples.
        images: kept beside it.
        first: its first samples, with their logits.
        unfinished: whether the attack goes on, or was stopped.
    """

    spec: Spec
    rows: Mapping[str, Mapping[str, Any]]
    images: KeptImages | None = None
    first: FirstSamples | None = None
    unfinished: bool = False

    @classmethod
    def of(cls, record: Record, images: KeptImages | None = None, first: Sequence[FirstSamples] = ()) -> "Shown | None":
        """Show a record with those first samples that are its own; None if it has not one prediction a sample."""
        rows = {row["sample"]: row for row in record.outcomes.rows()}
        if not {"prediction", "label"} <= set(record.outcomes.columns) or len(rows) < len(record.outcomes):
            return None
        same = [part for part in first if part.spec == record.spec and all(_agrees(row, rows) for row in part.rows)]
        return cls(record.spec, rows, images, FirstSamples.joined(same) if same else None)

    @classmethod
    def begun(cls, first: FirstSamples) -> "Shown":
        """Show an attack that has no record yet."""
        return cls(first.spec, {row["sample"]: row for row in first.rows}, None, first, unfinished=True)

    @property
    def attack(self) -> bool:
        """Whether it is of an attack."""
        return self.spec.protocol.resolved.get("kind") == "attack"


def load_shown(places: Iterable[Path]) -> tuple[list[Shown], int]:
    """Return records of files and folders, the unfinished attacks of the folders, and how many records cannot be shown.

    Raises:
        BadInputError: a folder has neither; a file is no record, or not what its record was made with.
    """
    shown: list[Shown | None] = []
    for place in places:
        kept: dict[str, list[FirstSamples]] = {}
        folder = place if place.is_dir() else place.parent
        for path in sorted(folder.rglob(f"*{SUFFIX}") if place.is_dir() else folder.glob(f"*{SUFFIX}")):
            first = load_first_samples(path)
            kept.setdefault(first.spec.stem(), []).append(first)
        for path in [] if kept and place.is_dir() and not any(place.rglob(f"*{RECORD}")) else find_records(place):
            record = load_consistent(path)
            images = None if record.images_file is None else load_images(path.parent, record.images_file)
            shown.append(Shown.of(record, images, kept.pop(record.spec.stem(), ())))
        shown += [Shown.begun(FirstSamples.joined(parts)) for parts in kept.values() if place.is_dir()]
    return [record for record in shown if record is not None], shown.count(None)


def _agrees(row: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]) -> bool:
    own = rows.get(row["sample"], {})
    return all(own.get(name) == row[name] for name in ("label", "prediction", "broken_by"))


def view(shown: Sequence[Shown], title: str, most: int = MOST, every: int | None = None) -> tuple[str, int]:
    """Return the page, and how many records are not on it, since they are of other data.

    Samples with images come first where there are more than `most`; at most 500 are shown.

    Args:
        title: of the page.
        most: largest number of samples.
        every: seconds after which the page loads itself again.

    Raises:
        BadInputError: no record.
    """
    data = Counter(record.spec.data.digest for record in shown)
    if not data:
        raise BadInputError("no record with one prediction a sample", expected="records of clean images or of attacks")
    chosen = [record for record in shown if record.spec.data.digest == data.most_common(1)[0][0]]
    content = _content(chosen, min(most, MOST)) | {"every": every}
    page = Document(
        title,
        [Widget("viewer.html.j2", "report", {"content": content})],
        style=asset("report", "viewer.css"),
        script=asset("report", "viewer.js"),
    )
    return html(page), len(shown) - len(chosen)


def _content(shown: Sequence[Shown], most: int) -> dict[str, Any]:
    data = shown[0].spec.data
    labels = {sample: row["label"] for record in shown for sample, row in record.rows.items()}
    everything = sorted(labels, key=_by_id)
    kept = {sample for record in shown for images in _images(record) for sample in images.samples}
    samples = _choose(everything, kept, most)
    budget = _Budget(IMAGE_BYTES)
    clean: dict[str, str] = {}
    records = [_record(record, samples, clean, budget) for record in shown]
    names = data.class_names
    return {
        "data": f"{data.name} ({data.split})",
        "total": len(everything),
        "unfinished": [
            f"{record.spec.model.name} under {record.spec.protocol.name}" for record in shown if record.unfinished
        ],
        "class_names": list(names or ()),
        "samples": [{"id": sample, "label": labels[sample], "clean": clean.get(sample)} for sample in samples],
        "records": records,
        "without_images": budget.refused,
        "side": SIDE,
    }


def _by_id(sample: str) -> tuple[int, str]:
    return len(sample), sample


def _choose(everything: Sequence[str], kept: set[str], most: int) -> list[str]:
    """Return at most so many samples, in order: those with images first, both evenly spread."""
    if len(everything) <= most:
        return list(everything)
    with_images = _spread([sample for sample in everything if sample in kept], most)
    rest = _spread([sample for sample in everything if sample not in kept], most - len(with_images))
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
    if shown.spec.protocol.resolved.get("space") != "signal":
        for images in _images(shown):
            _draw(images, set(samples), rows, clean, budget)
    for sample, logits in _logits(shown.first):
        rows[sample]["logits"] = logits
    return {
        "model": shown.spec.model.name,
        "protocol": shown.spec.protocol.name,
        "seed": shown.spec.seed,
        "attack": shown.attack,
        "unfinished": shown.unfinished,
        "rows": [rows.get(sample) for sample in samples],
    }


def _images(shown: Shown) -> list[KeptImages]:
    return [images for images in (shown.images, shown.first and shown.first.images()) if images]


def _logits(first: FirstSamples | None) -> Iterator[tuple[str, list[tuple[int, float, float]]]]:
    """Yield samples, and (class, logit of the clean image, of the worst image) of their largest logits."""
    parts = () if first is None else zip(first.rows, first.classes, first.logits, strict=True)
    for row, classes, logits in parts:
        rounded = np.round(logits.astype(float), 2).tolist()
        yield row["sample"], list(dict.fromkeys(zip(classes.tolist(), *rounded, strict=True)))


def _row(row: Mapping[str, Any], *, attack: bool) -> dict[str, Any]:
    """Return what is shown of a row, and its state.

    The state is `kept`: right; `lost`: right before the attack and wrong after it; `wrong`: wrong before any attack.
    """
    shown = {name: row[name] for name in _SHOWN if name in row}
    if attack:
        broken_by = row["broken_by"]
        state = "kept" if broken_by == "" else "wrong" if broken_by in UNATTACKED else "lost"
    else:
        state = "kept" if row["prediction"] == row["label"] else "wrong"
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in shown.items()} | {
        "state": state
    }


def _draw(
    images: KeptImages, wanted: set[str], rows: dict[str, dict[str, Any]], clean: dict[str, str], budget: _Budget
) -> None:
    """Add images to the rows: the attacked one, the difference, and how much that is magnified."""
    befores, afters = images.floats()
    for sample, before, after in zip(images.samples, befores, afters, strict=True):
        if sample not in wanted or sample not in rows or "image" in rows[sample]:
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
