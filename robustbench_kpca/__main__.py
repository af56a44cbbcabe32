"""Run the command `rbk`. Ctrl-C while its code is still being imported is one line, too."""

import os
import signal
import sys

BEFORE = 130
"""Exit code of Ctrl-C before the command has begun: that of shells."""


def run() -> None:
    """Entry point of `rbk` and `robustbench-kpca`."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    for name in ("stdout", "stderr"):  # None where the shell has closed it
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 (pathlib takes time, too)
    from robustbench_kpca.cli.main import run as begin

    signal.signal(signal.SIGINT, before)
    begin()


def _stop(*_: object) -> None:
    """End the process at once: an exception would be raised inside whichever module is being imported."""
    try:
        os.write(2, b"rbk: error: interrupted before the command began; nothing was done\n")
    finally:
        os._exit(BEFORE)


if __name__ == "__main__":
    run()
