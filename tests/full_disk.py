"""A full disk for the length of one call.

The limit holds for the whole process, so also for the file a test run's own output may go to: it must
never outlive the call that is tried, or pytest itself dies writing its next dot.
"""

import contextlib
import resource
from collections.abc import Iterator

LIMIT = 10_000


@contextlib.contextmanager
def full_disk(limit: int = LIMIT) -> Iterator[None]:
    """No file may grow beyond ``limit`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
