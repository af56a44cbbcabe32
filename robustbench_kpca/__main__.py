"""Run the command `rbk`. A signal while its code is still being imported is one line, too."""

import os
import signal
import sys

BEFORE = 128
"""Exit code of a signal before the command has begun, less the signal's number: that of shells."""


def run() -> None:
    """Entry point of `rbk` and `robustbench-kpca`."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _stop)
    for name in ("stdout", "stderr"):  # None where the shell has closed it
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 (pathlib takes time, too)
    from robustbench_kpca.cli.main import run as begin

    begin()


def _stop(number: int, *_: object) -> None:
    """End the process at once: an exception would be raised inside whichever module is being imported."""
    try:
        os.write(2, b"rbk: error: interrupted before the command began; nothing was done\n")
    finally:
        os._exit(BEFORE + number)


if __name__ == "__main__":
    run()
