"""Keep code of a model from ending the program as if it had succeeded, and from holding it when all is done.

`os._exit(0)` and `os.execv` raise while a run lasts; a thread that does not end is left behind.
"""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock, Timer
from typing import Any

GRACE = 5.0
"""Seconds that a thread of a model has to end, once everything is saved."""
_EXITS = ("_exit", "execv", "execve")  # all other functions of `os` that replace the process call these
_PLACES = (os, sys.modules[os.name])  # the second has the functions themselves: `posix` or `nt`
_REAL = {name: getattr(os, name) for name in _EXITS}
_lock = Lock()
_runs = 0  # number of runs that last, in all threads


@contextmanager
def no_early_exit() -> Iterator[None]:
    """Refuse an early exit while a run lasts; see `refuse_early_exit`."""
    refuse_early_exit()
    try:
        yield
    finally:
        _allow_early_exit()


def refuse_early_exit() -> None:
    """Make `os._exit` with code 0, and what replaces the process, raise SystemExit in this process.

    Other codes pass: whoever started the process sees them as a failure. A fork may end as it likes.
    """
    global _runs
    with _lock:
        _runs += 1
        for name in _EXITS:
            _set(name, partial(_leave, name, os.getpid()))


def end_without_threads(code: int) -> None:
    """Let this process end with `code` in `GRACE` seconds, if Python still waits for threads then.

    Python waits for every thread that is no daemon, and then calls what was registered by `atexit`.
    """
    timer = Timer(GRACE, _end, (code,))
    timer.daemon = True
    timer.start()
    atexit.register(timer.cancel)  # registered last, so called first: the others may take longer


def _end(code: int) -> None:
    print("rbk: a thread that a model began does not end; the process ends without it", file=sys.stderr, flush=True)
    _REAL["_exit"](code)


def _allow_early_exit() -> None:
    global _runs
    with _lock:
        _runs -= 1
        for name in _EXITS if not _runs else ():
            _set(name, _REAL[name])


def _set(name: str, function: Any) -> None:
    for place in _PLACES:
        setattr(place, name, function)


def _leave(name: str, owner: int, *what: Any, **named: Any) -> Any:
    """Do what `os.NAME` does, unless it would end the run of the process `owner` as if that had succeeded."""
    code = [*what, *named.values(), 0][0]  # the first argument; of `execv`, the path
    if os.getpid() != owner or (name == "_exit" and code % 256):
        return _REAL[name](*what, **named)
    raise SystemExit(f"os.{name}({code!r})")
