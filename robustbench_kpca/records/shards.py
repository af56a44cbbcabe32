"""Shards: a record's samples in ranges that are evaluated apart. The file of a shard says that it is finished.

A shard is named by the digest of its inputs, and its file carries the SHA-256 of its content. So a file of another
specification is never taken, and a damaged one is made again. This file imports no torch.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from robustbench_kpca._core.errors import EvaluationError
from robustbench_kpca._core.files import sha256
from robustbench_kpca.records.images import KeptImages
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.table import Table

SUFFIX = ".shard"
MOST = 64
"""Shards of one record; with more samples the shards get larger, up to `LARGEST`."""
LARGEST = 16
"""Batches of a shard, unless more are needed for `LEAST_BATCHES`; with more samples there are more shards."""
LEAST_BATCHES = 8
"""Batches of a shard without an attack: one more batch tells whether the model has changed."""
Cell = tuple[str, int]
"""Name of a corruption, and severity."""
_TOGETHER = 16 * 2**20  # bytes of text that are parsed at once


@dataclass(frozen=True, slots=True)
class Shard:
    """Samples `first` to `last` - 1 of a record; `digest` is of everything that determines their outcomes."""

    first: int
    last: int
    digest: str

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.first:08d}-{self.last:08d}-{self.digest[:16]}{SUFFIX}"

    @property
    def journal(self) -> str:
        """The name of the file with its progress while it is made."""
        return f".{self.name}.partial"

    def __str__(self) -> str:
        return f"samples {self.first} to {self.last - 1}"


@dataclass(frozen=True)
class Made:
    """What is known of a finished shard beside its outcomes.

    Attributes:
        forwards: inputs shown without an attack.
        seconds: running time, that of earlier attempts included.
        batch_size: the batch size at the end; smaller than asked for if memory ran out.
        remarks: flags for the record.
    """

    forwards: int
    seconds: float
    batch_size: int
    remarks: tuple[str, ...] = ()


def shard_size(samples: int, batch_size: int, passes: int | None) -> int:
    """Return the number of samples of a shard, a multiple of the batch size.

    It does not depend on the number of processes, so that a run can be resumed with another.

    Args:
        samples: number of samples of the record.
        batch_size: batch size of the model.
        passes: how often every sample is shown; None: it is attacked.
    """
    batches = -(-samples // batch_size)
    least = 1 if passes is None else -(-LEAST_BATCHES // passes)
    return batch_size * max(min(-(-batches // MOST), LARGEST), least)


def plan_shards(ids: Sequence[str], key: str, size: int) -> list[Shard]:
    """Divide samples into shards.

    Args:
        ids: ids of the samples, in order.
        key: digest of the specification and of the environment.
        size: number of samples of a shard; the last one may have fewer.
    """
    starts = range(0, len(ids), size)
    ends = [min(start + size, len(ids)) for start in starts]
    return [
        Shard(first, last, sha256("\n".join((key, *ids[first:last])).encode()))
        for first, last in zip(starts, ends, strict=True)
    ]


def to_bytes(shard: Shard, outcomes: Outcomes, work: Made, images: KeptImages | None = None) -> bytes:
    """Return the content of the file of a finished shard.

    Its first line has the shard's digest and the SHA-256 of the rest: a line with `work` and the length of the
    compressed outcomes; these; and the file of the images that are kept of these samples.
    """
    table = zlib.compress(outcomes.to_csv(), 1)
    rest = json.dumps(asdict(work) | {"table": len(table)}).encode() + b"\n" + table
    rest += b"" if images is None else images.to_file()
    return _first_line(shard, rest) + b"\n" + rest


def read_made(folder: Path, shard: Shard) -> Made | None:
    """Return what is known of a finished shard; None if there is no file, or another or a damaged one.

    The checksum covers the outcomes, too; they are unpacked only when the shards are merged.
    """
    rest = _checked(folder, shard)
    if rest is None:
        return None
    fields = json.loads(rest.partition(b"\n")[0])
    del fields["table"]
    return Made(**fields | {"remarks": tuple(fields["remarks"])})


def _checked(folder: Path, shard: Shard) -> bytes | None:
    """Return what follows the first line of a shard's file; None if there is no file, or another or a damaged one."""
    try:
        with open(f"{folder}/{shard.name}", "rb", buffering=0) as file:  # noqa: PTH123 (a third of the time of Path's)
            content = file.read()
    except OSError:
        return None
    first, _, rest = content.partition(b"\n")
    return rest if first == _first_line(shard, rest) else None


def _contents(folder: Path, shard: Shard) -> tuple[bytes, bytes]:
    """Return the compressed outcomes of a finished shard, and the file of its images, which may be empty."""
    rest = _checked(folder, shard)
    if rest is None:
        raise EvaluationError(f"{shard.name} in {folder} is missing or damaged", fix="run the same command again")
    line, _, content = rest.partition(b"\n")
    length = json.loads(line)["table"]
    return content[:length], content[length:]


def _first_line(shard: Shard, rest: bytes) -> bytes:
    return f"{shard.digest} {sha256(rest)}".encode()


def merge(folder: Path, shards: Sequence[Shard], table: Table, cells: Sequence[Cell]) -> Outcomes:
    """Return the outcomes of all shards in the order of one plain run: cell by cell, and there sample by sample.

    Args:
        folder: where the shards are.
        shards: all of them, in order.
        table: the columns.
        cells: (corruption, severity) of the protocol, in order.

    Raises:
        EvaluationError: a shard is missing or damaged.
    """
    return _join(_texts(folder, shards), table, cells, str(folder))


def merged_images(folder: Path, shards: Sequence[Shard]) -> KeptImages | None:
    """Return the images that are kept of all shards, in their order; None if there are none.

    Raises:
        EvaluationError: a shard is missing or damaged.
    """
    files = [images for shard in shards if (images := _contents(folder, shard)[1])]
    return KeptImages.joined([KeptImages.read(content) for content in files]) if files else None


def _join(texts: Iterable[bytes], table: Table, cells: Sequence[Cell], where: str) -> Outcomes:
    """Return one table of all rows, which does not depend on the portions.

    Args:
        texts: CSV with header, each with the rows of some samples.
        table: the columns.
        cells: in order; within a cell the rows keep the order in which they arrive.
        where: the texts are from, in errors.

    Raises:
        BadInputError: a text is not of this table.
    """
    outcomes = Outcomes.joined([Outcomes.from_text(text, table, where) for text in texts])
    if len(cells) == 1 or "corruption" not in table.columns:
        return outcomes
    places = {cell: place for place, cell in enumerate(cells)}
    rows = zip(outcomes["corruption"], outcomes["severity"].tolist(), strict=True)
    place = np.array([places[cell] for cell in rows])
    return outcomes.where(np.argsort(place, kind="stable"))


def _texts(folder: Path, shards: Sequence[Shard]) -> Iterator[bytes]:
    """Yield the texts of the shards, many joined to one: parsing has a cost of its own."""
    texts, size = list[bytes](), 0
    for shard in shards:
        text = zlib.decompress(_contents(folder, shard)[0])
        texts.append(text if not texts else text.partition(b"\n")[2])  # one header is enough
        size += len(text)
        if size >= _TOGETHER:
            yield b"".join(texts)
            texts, size = [], 0
    if texts:
        yield b"".join(texts)
