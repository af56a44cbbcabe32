"""Memory-mapping from several threads."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from robustbench_kpca.data.io.reading import map_array


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


@pytest.mark.parametrize(
    "content",
    [
        b"", b"PK\x03\x04junk", b"\x93NUMPY\x01\x00\x20\x00{'descr': '|u1', 'fortran_", b"\x93NUMPY\x01\x00\x76\x00"
        + b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000000000000000000000,), }".ljust(117) + b"\n",
    ],
)  # fmt: skip
def test_damaged_files_are_values_errors(tmp_path, content):
    path = tmp_path / "array.npy"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        map_array(path)


def test_several_arrays_are_no_array(tmp_path):
    np.savez(tmp_path / "some.npz", a=np.arange(2))
    (tmp_path / "some.npz").rename(tmp_path / "some.npy")
    with pytest.raises(ValueError, match=r"no \.npy file"):
        map_array(tmp_path / "some.npy")
