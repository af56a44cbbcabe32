"""What lies beside an unfinished record: its lock, its state, and the hidden folder of its shards. No torch.

`.STEM.lock` is held while a process works on the record, `.STEM.KEY.shards` holds its shards. `state.json` there, or
`.STEM.state.json` where one process works alone, tells `rbk records status` how far it is.
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
from pathlib import Path
from typing import Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import flush_folder, replace_file, sweep_unfinished, unwritable
from robustbench_kpca._core.lock import holder_of, locked
from robustbench_kpca._core.progress import Line, Progress
from robustbench_kpca.records.record import SUFFIX

FOLDER, LOCK, STATE = ".shards", ".lock", "state.json"
JOURNAL = ".partial"
_BESIDE = (LOCK, f".{STATE}", JOURNAL)
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
        shards: number of shards; 0 where one process works alone.
        running: shard -> who works on it.
        failed: shard -> why it was given up.
        attempt: how often this record was begun.
        done: rows that are done.
        rows: all rows.
        left: seconds that the rest takes; None if that is not known yet.
        told: when this was written, by the clock of the first process.
    """

    model: str
    data: str
    protocol: str
    samples: int
    shards: int
    running: Mapping[str, Running] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    attempt: int = 1
    done: int = 0
    rows: int = 0
    left: float | None = None
    told: str = ""


def folder_of(out: Path, stem: str, key: str) -> Path:
    """Return where the shards of a record are kept; `key` is the digest of specification and environment."""
    return out / f".{stem}.{key[:8]}{FOLDER}"


def stem_of(folder: Path) -> str:
    """Return the file name of the record, without suffix, that a folder of shards belongs to."""
    return folder.name[1:].rpartition(FOLDER)[0].rpartition(".")[0]


def lock_of(out: Path, stem: str) -> Path:
    """Return the lock of a record."""
    return out / f".{stem}{LOCK}"


def state_of(out: Path, stem: str) -> Path:
    """Return the state of a record on which one process works alone."""
    return out / f".{stem}.{STATE}"


def make_folder(folder: Path) -> None:
    """Make a folder of shards, if there is none.

    Raises:
        BadInputError: it cannot be made.
    """
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
    _write(folder / STATE, state)


def _write(path: Path, state: State) -> None:
    with contextlib.suppress(OSError):
        if path.parent.is_dir():  # else the record is finished
            content = json.dumps(asdict(replace(state, told=now())), indent=1)
            replace_file(path, content.encode(), durable=False)


def read_state(path: Path) -> State | None:
    """Return a state; None if there is none, or it is damaged or of another version."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        running = {name: Running(**fields) for name, fields in content.pop("running").items()}
        return State(running=running, **content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def next_attempt(folder: Path) -> int:
    """Return how often the record of a folder of shards was begun, this time included, whatever the environment."""
    out, stem = folder.parent, stem_of(folder)
    states = [read_state(path / STATE) for path in out.glob(f".{_literal(stem)}.????????{FOLDER}")]
    return 1 + max((state.attempt for state in states if state is not None), default=0)


def told_alone(
    progress: Progress | None, out: Path, states: Mapping[str, State], clock: Callable[[], float] = time.monotonic
) -> Progress:
    """Return a `Progress` that also writes the states of records, by stem, on which this process works alone."""
    line, since, written = Line("", clock), now(), clock()  # short work leaves no trace
    me = socket.gethostname()

    def tell(done: int, total: int, /, **news: Any) -> None:
        nonlocal written
        if progress is not None:
            progress(done, total, **news)
        line(done, total, **news)
        if clock() - written < EVERY:
            return
        written = clock()
        per_second = line.per_second
        running = {"all samples": Running(me, os.getpid(), since, done, rows=total, per_second=per_second)}
        for stem, state in states.items():
            _write(state_of(out, stem), replace(state, running=running, done=done, rows=total, left=line.left))

    return tell


def discard(out: Path, stem: str) -> None:
    """Delete the shards and the state of a record, whatever their environment."""
    state_of(out, stem).unlink(missing_ok=True)
    for path in out.glob(f".{_literal(stem)}.????????{FOLDER}"):
        shutil.rmtree(path, ignore_errors=True)


def tidy(out: Path, stem: str) -> None:
    """Delete what a process that was killed just after it had written a record has left beside it."""
    with contextlib.suppress(OSError):
        sweep_unfinished(out, (out / f"{stem}{SUFFIX}").stat().st_mtime)
    lock = lock_of(out, stem)
    beside = out.glob(f".{_literal(stem)}.*")
    left = [path for path in beside if path.name.removeprefix(f".{stem}").startswith(_BESIDE)]
    left += out.glob(f".{_literal(stem)}.????????{FOLDER}")
    if left and holder_of(lock) is None:
        with contextlib.suppress(BadInputError), locked(lock, wait=False):
            discard(out, stem)
            for path in left:
                if path != lock and path.is_file():
                    path.unlink(missing_ok=True)


def _literal(text: str) -> str:
    """Keep `glob` from reading brackets and stars in a name."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)
