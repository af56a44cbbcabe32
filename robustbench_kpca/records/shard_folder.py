"""What lies beside an unfinished record: its lock, its state, and the hidden folder of its shards. No torch.

`.STEM.lock` is held while a process works on the record. `.STEM.KEY.shards` holds its finished shards, the journals of
the others, and `state.json`, which tells `rbk records status` how far it is. To one process all samples are one shard.
"""

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from typing import Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import flush_folder, replace_file, sweep_unfinished, unwritable
from robustbench_kpca._core.lock import is_held, locked
from robustbench_kpca._core.progress import Every, Line, Progress
from robustbench_kpca.records.record import SUFFIX

FOLDER, LOCK, STATE = ".shards", ".lock", "state.json"
EVERY = 2.0
"""Seconds between two states that only say how far the work is."""


@dataclass(frozen=True)
class Running:
    """A process at work.

    Attributes:
        host: its machine.
        pid: its number there.
        since: when it began, by the clock of the first process.
        done: rows of its shard that are done; a row is a sample, once a corruption and severity.
        rows: rows of its shard.
        per_second: rows it does a second; None if that is not known yet.
    """

    host: str
    pid: int
    since: str
    done: int
    rows: int
    per_second: float | None = None


@dataclass(frozen=True)
class State:
    """What is known of an unfinished record.

    Attributes:
        model: its name.
        data: name and split.
        protocol: its name.
        samples: number of samples.
        shards: number of shards.
        running: shard -> who works on it.
        failed: shard -> why it was given up.
        done: rows that are done.
        rows: all rows.
        left: seconds that the rest takes; None if that is not known yet.
    """

    model: str
    data: str
    protocol: str
    samples: int
    shards: int
    running: Mapping[str, Running] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    done: int = 0
    rows: int = 0
    left: float | None = None


def folder_of(out: Path, stem: str, key: str) -> Path:
    """Return where the shards of a record are kept; `key` is the digest of specification and environment."""
    return out / f".{stem}.{key[:8]}{FOLDER}"


def stem_of(folder: Path) -> str:
    """Return the file name of the record, without suffix, that a folder of shards belongs to."""
    return folder.name[1:].rpartition(FOLDER)[0].rpartition(".")[0]


def lock_of(out: Path, stem: str) -> Path:
    """Return the lock of a record."""
    return out / f".{stem}{LOCK}"


def make_folder(folder: Path) -> None:
    """Make a folder of shards, if there is none.

    Raises:
        BadInputError: it cannot be made.
    """
    if folder.is_dir():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder.parent, error) from None
    flush_folder(folder.parent)


def now() -> str:
    """Return the time as states have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_state(folder: Path, state: State) -> None:
    """Replace the state of a folder of shards. It is only for people: if it cannot be written, the work goes on."""
    with contextlib.suppress(OSError):
        if folder.is_dir():  # else the record is finished
            content = json.dumps(asdict(state), indent=1)
            replace_file(folder / STATE, content.encode(), durable=False)


def read_state(folder: Path) -> State | None:
    """Return the state in a folder of shards; None if there is none, or it is damaged or of another version."""
    try:
        content: dict[str, Any] = json.loads((folder / STATE).read_bytes())
        running = {name: Running(**fields) for name, fields in content.pop("running").items()}
        return State(running=running, **content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def telling(
    progress: Progress | None, states: Mapping[Path, State], clock: Callable[[], float] = time.monotonic
) -> Progress:
    """Return a `Progress` that also writes the states, by folder, of records that this process makes as one shard."""
    line, since, writes = Line("", clock), now(), Every(EVERY, clock)  # short work leaves no trace
    me = socket.gethostname()

    def tell(done: int, total: int, /, **news: Any) -> None:
        if progress is not None:
            progress(done, total, **news)
        line(done, total, **news)
        if not writes.due():
            return
        running = {"all samples": Running(me, os.getpid(), since, done, rows=total, per_second=line.per_second)}
        for folder, state in states.items():
            with contextlib.suppress(BadInputError):
                make_folder(folder)
            write_state(folder, replace(state, running=running, done=done, rows=total, left=line.left))

    return tell


def discard(out: Path, stem: str) -> None:
    """Delete what is unfinished of a record, whatever its environment."""
    for folder in _folders(out, stem):
        shutil.rmtree(folder, ignore_errors=True)


def tidy(out: Path, stem: str) -> None:
    """Delete what a process that was killed just after it had written a record has left beside it."""
    with contextlib.suppress(OSError):
        sweep_unfinished(out, (out / f"{stem}{SUFFIX}").stat().st_mtime)
    lock = lock_of(out, stem)
    if (lock.exists() or _folders(out, stem)) and not is_held(lock):
        with contextlib.suppress(BadInputError), locked(lock, wait=False):
            discard(out, stem)


def _folders(out: Path, stem: str) -> list[Path]:
    return list(out.glob(f".{escape(stem)}.????????{FOLDER}"))
