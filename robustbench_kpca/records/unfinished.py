"""Read what lies beside records: which are unfinished, and how far they are. No torch."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.lock import is_held
from robustbench_kpca.records.shard_folder import FOLDER, Running, State, lock_of, read_state, stem_of
from robustbench_kpca.records.shards import SUFFIX as SHARD


@dataclass(frozen=True)
class Unfinished:
    """What lies beside an unfinished record.

    Attributes:
        folder: folder of its shards.
        stem: the record's file name without suffix.
        state: how far it is.
        done: number of finished shards.
        active: whether a process works on it.
    """

    folder: Path
    stem: str
    state: State | None
    done: int
    active: bool

    @property
    def running(self) -> Mapping[str, Running]:
        """The shards that are being evaluated now, and who does so."""
        return self.state.running if self.active and self.state else {}

    @property
    def failed(self) -> Mapping[str, str]:
        """The shards that were given up, and why."""
        return self.state.failed if self.state else {}

    @property
    def waiting(self) -> int | None:
        """Number of shards that wait; the state may be a moment older than the files."""
        if self.state is None:
            return None
        return max(self.state.shards - self.done - len(self.running) - len(self.failed), 0)

    @property
    def left(self) -> float | None:
        """Seconds that the rest takes; None if that is not known, or nobody works on it."""
        return self.state.left if self.state and self.active else None


def below(out: Path) -> Iterator[Path]:
    """Yield every file and folder below `out`, but for what a process deletes meanwhile."""
    for place, folders, files in os.walk(out):
        for name in (*folders, *files):
            yield Path(place, name)


def unfinished(out: Path) -> list[Unfinished]:
    """Return everything unfinished below `out`, sorted.

    Raises:
        BadInputError: `out` is no folder.
    """
    if not out.is_dir():
        raise BadInputError(f"{out} is no folder", expected="the folder of `rbk eval --out`")
    folders = [path for path in below(out) if path.name.startswith(".") and path.name.endswith(FOLDER)]
    return [_look(folder) for folder in sorted(folders) if folder.is_dir()]


def _look(folder: Path) -> Unfinished:
    stem = stem_of(folder)
    return Unfinished(folder, stem, read_state(folder), _count(folder), active=is_held(lock_of(folder.parent, stem)))


def _count(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:  # its record may be finished by now
        return sum(entry.name.endswith(SHARD) for entry in entries)
    return 0
