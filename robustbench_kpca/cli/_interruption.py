"""What a command says when it is interrupted by Ctrl-C, SIGTERM (a scheduler) or SIGHUP (a closed terminal)."""

import atexit
import os
import shlex
import signal
from collections.abc import Sequence
from types import FrameType

CODE = 3
"""Exit code of an interrupted command, whatever the signal."""
_JOURNALS = ("eval", "reproduce", "board demo")
"""Commands that go on where they stopped when they are run again."""


class Interrupted(KeyboardInterrupt):
    """Raised where a signal arrives, so that files are closed."""


_received: list[str] = []
_code: list[int] = []


def listen() -> None:
    """Raise `Interrupted` at SIGINT, SIGTERM and SIGHUP. What was to be ignored, as under nohup, stays ignored."""
    owner = os.getpid()
    atexit.register(_end)  # the first to be registered is the last to be called

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if number != signal.SIGINT or os.getpid() != owner:
            signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
        if os.getpid() != owner:  # a worker, which inherits this: it ends as it would have
            os.kill(os.getpid(), number)
            return
        _received.append(signal.Signals(number).name)
        raise Interrupted

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, stop)


def arrived() -> bool:
    """Tell whether a signal came, even if what it raised was lost in a library, which then fails in its own way."""
    return bool(_received)


def end_with(code: int) -> None:
    """Let the process end with this code: Python ends itself by SIGINT if that came while a text was executed."""
    _code[:] = [code]


def _end() -> None:
    if _code and arrived():
        os._exit(_code[0])


def message(arguments: Sequence[str]) -> str:
    """Return the line for an interrupted command: by what, what is kept, and the command that goes on."""
    by = f"interrupted by {_received[-1]}" if _received and _received[-1] != "SIGINT" else "interrupted"
    command = arguments[0] if arguments else ""
    again = ["rbk", *(word for word in arguments if word not in ("--fresh", "--no-resume"))]  # they begin anew
    if command == "train":
        again += [] if "--resume" in arguments else ["--resume"]
        outlook = "the last saved state of the training is kept; it goes on with"
    elif " ".join(arguments[:2]).startswith(_JOURNALS):
        outlook = "finished records and the journal of the unfinished one are kept; it goes on with"
    else:
        outlook = "what was finished is kept; run again"
    return f"{by}; {outlook}: {shlex.join(again)}"
