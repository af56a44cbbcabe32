"""The hidden folder of an unfinished record's shards: `.STEM.KEY.shards` beside the record. No torch.

`state.json` in it tells `rbk status` what is running and what failed. Only one process at a time works on a folder.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.shards import SUFFIX as SHARD
from robustbench_kpca.files import replace_file
from robustbench_kpca.lock import locked
from robustbench_kpca.records.record import SUFFIX as RECORD
from robustbench_kpca.records.record import load_record

FOLDER = ".shards"
_LOCK, _STATE = "lock", "state.json"


@dataclass(frozen=True)
class State:
    """What is known of an unfinished record.

    Attributes:
        model: its name.
        data: name and split.
        protocol: its name.
        samples: number of samples.
        shards: number of shards.
        running: shard -> process that works on it.
        failed: shard -> why it was given up.

    """

    model: str
    data: str
    protocol: str
    samples: int
    shards: int
    running: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


def folder_of(out: Path, stem: str, key: str) -> Path:
    """Return where the shards of a record are kept; `key` is the digest of specification and environment."""
    return out / f".{stem}.{key[:8]}{FOLDER}"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Make the folder and hold its lock.

    Raises:
        BadInputError: another process works on the same record, or the folder is not writable.

    """
    with locked(folder / _LOCK, wait=False):
        yield


def write_state(folder: Path, state: State) -> None:
    """Replace the state. It is only for people: where it cannot be written, the evaluation goes on."""
    with contextlib.suppress(OSError):
        replace_file(folder / _STATE, json.dumps(asdict(state), indent=1).encode(), durable=False)


@dataclass(frozen=True)
class Unfinished:
    """A folder of shards; `active`: a process works on it now; `done`: number of finished shards."""

    folder: Path
    state: State | None
    done: int
    active: bool

    @property
    def stem(self) -> str:
        """The record's file name without suffix."""
        return self.folder.name[1:].rpartition(FOLDER)[0].rpartition(".")[0]

    @property
    def running(self) -> Mapping[str, int]:
        """The shards that are being evaluated now, and the processes that do so."""
        return self.state.running if self.active and self.state else {}

    @property
    def failed(self) -> Mapping[str, str]:
        """The shards that were given up, and why."""
        return self.state.failed if self.state else {}


def unfinished(out: Path) -> list[Unfinished]:
    """Return every folder of shards below `out`, sorted.

    Raises:
        BadInputError: `out` is no folder.

    """
    if not out.is_dir():
        raise BadInputError(f"{out} is no folder", expected="the folder of `rbk eval --out`")
    found = sorted(path for path in out.rglob(f".*{FOLDER}") if path.is_dir())
    return [Unfinished(path, _state(path), _count(path), _is_held(path)) for path in found]


def discard(out: Path, stem: str) -> None:
    """Delete the shards of a record, whatever their environment."""
    for path in out.glob(f".{_literal(stem)}.????????{FOLDER}"):
        shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True)
class Leftover:
    """A folder of shards that nobody needs, and why."""

    folder: Path
    why: str
    shards: int


def leftovers(out: Path, *, everything: bool = False) -> list[Leftover]:
    """Return the folders of shards that can go.

    They are those of finished records, those of another environment than the latest attempt's, and those without a
    readable state. With `everything`, also those of unfinished records. What a process works on is never among them.
    """
    every = unfinished(out)
    found = []
    for one in every:
        if one.active:
            continue
        twins = [other for other in every if other.stem == one.stem and other.folder.parent == one.folder.parent]
        if _is_finished(one):
            why = "its record is finished"
        elif one.state is None:
            why = "its state cannot be read"
        elif max(twins, key=lambda twin: twin.folder.stat().st_mtime_ns) is not one:
            why = "stale: a later attempt had other versions, threads or code"
        elif everything:
            why = "unfinished"
        else:
            continue
        found.append(Leftover(one.folder, why, one.done))
    return found


def _is_finished(one: Unfinished) -> bool:
    path = one.folder.with_name(f"{one.stem}{RECORD}")
    try:
        return path.is_file() and bool(load_record(path))
    except BadInputError:
        return False


def _state(folder: Path) -> State | None:
    try:
        content: dict[str, Any] = json.loads((folder / _STATE).read_bytes())
        return State(**content)
    except (OSError, ValueError, TypeError):
        return None


def _count(folder: Path) -> int:
    with os.scandir(folder) as entries:
        return sum(entry.name.endswith(SHARD) for entry in entries)


def _is_held(folder: Path) -> bool:
    """Tell whether another process holds the lock."""
    try:
        with (folder / _LOCK).open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return False
    return False


def _literal(text: str) -> str:
    """Keep `glob` from reading brackets and stars in a name."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)
