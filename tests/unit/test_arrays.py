"""Memory-mapping from several threads."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from robustbench_kpca.data.io.arrays import map_array


@pytest.fixture
def hasty_threads():
    """Let threads change places inside the parser: collect garbage, in Python, every few allocations."""
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()

    def work(phase: str, info: dict[str, int]) -> None:
        sum(range(30))

    sys.setswitchinterval(1e-6)
    gc.set_threshold(5)
    gc.callbacks.append(work)
    yield
    gc.callbacks.remove(work)
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty_threads")
def test_threads_may_map_at_once(tmp_path):
    path = tmp_path / "array.npy"
    np.save(path, np.arange(3))
    with ThreadPoolExecutor(8) as pool:
        maps = list(pool.map(lambda _: map_array(path), range(500)))
    assert all(array.tolist() == [0, 1, 2] for array in maps)
