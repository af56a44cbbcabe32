"""A worker at the other end of a pipe or a connection, as `Processes` and `Ranks` have them."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from robustbench_kpca.early_exit import no_early_exit
from robustbench_kpca.evaluation.bench import GRACE, Hand, StoppableJournal

_NEWS = 0.5  # seconds between two messages about progress


def serve(pipe: Connection, number: int, threads: int) -> None:
    """Take orders until the pipe is closed: ("work", bytes), then ("shard", Task) any number of times.

    Answers: ("ready", (machine, process id)) at first, ("progress", rows done), and those of `Hand`.
    """
    for name in {"SIGINT", "SIGHUP"} & set(signal.Signals.__members__):  # these reach all processes; the first decides
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: setattr(StoppableJournal, "stopping", True))
    threading.Thread(target=_watch_parent, daemon=True).start()
    torch.set_num_threads(threads)
    if torch.cuda.is_available() and torch.cuda.device_count() > 1:  # "cuda" is then another device in each process
        torch.cuda.set_device(number % torch.cuda.device_count())
    hand = Hand()
    with no_early_exit(), suppress(EOFError, OSError):  # the pipe is closed: there is nothing more to do
        pipe.send(("ready", (socket.gethostname(), os.getpid())))
        while not StoppableJournal.stopping:
            kind, content = pipe.recv()
            answer = hand.take_up(content) if kind == "work" else hand.make(content, _teller(pipe))
            if answer is not None:
                pipe.send(answer)


def _teller(pipe: Connection) -> Callable[..., None]:
    """Return a `Progress` that sends the number of finished rows, twice a second at most."""
    told = time.monotonic()

    def tell(done: int, total: int, /, **news: Any) -> None:  # noqa: ARG001 (the parent adds up what is done)
        nonlocal told
        if time.monotonic() - told >= _NEWS:
            told = time.monotonic()
            try:
                pipe.send(("progress", done))
            except OSError:  # nobody is there any more
                StoppableJournal.stopping = True

    return tell


def _watch_parent() -> None:
    """When the first process is gone, even killed, write the journal at the next batch and end."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        StoppableJournal.stopping = True
        time.sleep(GRACE)
        os._exit(1)
