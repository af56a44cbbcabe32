"""Two forms of the rehearsal: short, at sizes that show what depends on n; and whole, with RBK_REHEARSAL=whole."""

import os
import resource
import time
from contextlib import contextmanager

WHOLE = os.environ.get("RBK_REHEARSAL") == "whole"
SHARE = 1.0 if WHOLE else 0.02
"""Of the files of every class of ImageNet-C and of ImageNet's training part: all, or one validation image of each."""
LINES: list[str] = []
"""What was measured, as rows of a table."""


def sized(short, whole):
    return whole if WHOLE else short


@contextmanager
def measured(what, n):
    """Measure the seconds and the most memory of a step: `with measured("imagenet-c", 3_750_000): ...`."""
    started, cpu = time.perf_counter(), sum(os.times()[:4])
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds, busy = time.perf_counter() - started, sum(os.times()[:4]) - cpu
    LINES.append(f"| {what} | {n:,} | {seconds:.1f} | {busy:.1f} | {peak:,.0f} |")
