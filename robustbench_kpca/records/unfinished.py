"""Read what lies beside records: which are unfinished, how far they are, and what nobody needs any more. No torch."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import unfinished_files, unwritable
from robustbench_kpca._core.lock import holder_in, is_held, locked
from robustbench_kpca.records.record import SUFFIX as RECORD
from robustbench_kpca.records.record import load_record
from robustbench_kpca.records.shard_folder import FOLDER, LOCK, Running, State, lock_of, read_state, stem_of
from robustbench_kpca.records.shards import SUFFIX as SHARD


@dataclass(frozen=True)
class Unfinished:
    """What lies beside an unfinished record.

    Attributes:
        folder: of its shards.
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


@dataclass(frozen=True)
class Leftover:
    """A folder or file that nobody needs, and why; `lock` is of the record that it belongs to, if it does."""

    path: Path
    why: str
    shards: int = 0
    lock: Path | None = None


def leftovers(out: Path, *, everything: bool = False) -> list[Leftover]:
    """Return what can go.

    That is: folders of shards of finished records, of another environment than the latest attempt's, or without a
    readable state; locks of processes that have ended; and files that a killed process was writing. With `everything`,
    also the folders of unfinished records. What a process works on is never among it.
    """
    every = unfinished(out)
    useless = []
    for item in every:
        if item.active:
            continue
        beside = item.folder.parent
        twins = [other for other in every if other.stem == item.stem and other.folder.parent == beside]
        if _is_finished(beside, item.stem):
            why = "its record is finished"
        elif item.state is None:
            why = "its state cannot be read"
        elif max(twins, key=_attempt) is not item:
            why = "stale: a later attempt had other versions, threads or code"
        elif everything:
            why = "unfinished"
        else:
            continue
        useless.append(Leftover(item.folder, why, item.done, lock_of(beside, item.stem)))
    taken = {item.path for item in useless}
    return useless + [item for item in _litter(out) if taken.isdisjoint(item.path.parents)]


def delete(leftover: Leftover) -> None:
    """Delete what is left over.

    Raises:
        BadInputError: a process has begun to work on it, or the folder cannot be written.
    """
    path = leftover.path
    with nullcontext() if leftover.lock is None else locked(leftover.lock, wait=False):
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        except FileNotFoundError:  # another process was faster
            pass
        except OSError as error:
            raise unwritable(path.parent, error) from None


def _litter(out: Path) -> list[Leftover]:
    """Return locks of processes that have ended on this machine, and files that a killed process was writing."""
    litter, folders = [], set[Path]()
    for path in sorted(path for path in below(out) if path.name.startswith(".")):
        if path.name.endswith(LOCK):
            if holder_in(path) and not is_held(path):
                litter.append(Leftover(path, "the process that held this lock has ended", lock=path))
        elif path.parent not in folders:
            folders.add(path.parent)
            written = unfinished_files(path.parent, time.time())
            litter += [Leftover(file, "the process that wrote it has ended") for file in written]
    return litter


def _attempt(item: Unfinished) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        return (item.state.attempt if item.state else 0, item.folder.stat().st_mtime_ns)
    return (0, 0)


def _is_finished(out: Path, stem: str) -> bool:
    path = out / f"{stem}{RECORD}"
    try:
        return path.is_file() and bool(load_record(path))
    except BadInputError:
        return False


def _count(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:  # its record may be finished by now
        return sum(entry.name.endswith(SHARD) for entry in entries)
    return 0
