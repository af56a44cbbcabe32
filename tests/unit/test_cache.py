"""A cache holds the decoded images, whole or not at all, and nobody can tell it from the originals."""

import pickle
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch
from full_disk import full_disk
from PIL import Image

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca.data.given import as_dataset
from robustbench_kpca.data.io import cache as _cache
from robustbench_kpca.data.io.cache import cached
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.request import View
from robustbench_kpca.data.samples import ArraySamples

VIEW = View(16)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(5):
            pixels = rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path / "images"


def load(folder):
    return load_data(str(folder), view=VIEW)


def test_it_is_the_same_samples(folder, tmp_path):
    samples, seen = load(folder), []
    fast = cached(samples, tmp_path / "cache", lambda done, total: seen.append((done, total)))
    assert (fast.ids, fast.labels, fast.digest(), fast.name, fast.split, fast.classes) == (
        samples.ids, samples.labels, samples.digest(), samples.name, samples.split, samples.classes,
    )  # fmt: skip
    assert all(np.array_equal(fast.image(i), samples.image(i)) for i in range(len(samples)))
    assert seen[-1] == (10, 10)
    part = fast.take([3, 1])
    assert part.digest() == samples.take([3, 1]).digest()
    assert np.array_equal(part.image(0), samples.image(3))
    assert [path.name for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")] == [fast.path.name]


def test_it_is_found_again_in_any_order_and_process(folder, tmp_path, monkeypatch):
    samples = load(folder)
    cached(samples, tmp_path / "cache")
    monkeypatch.setattr(_cache, "_pixels", None)  # decoding again would fail
    backwards = samples.take(range(9, -1, -1))
    fast = pickle.loads(pickle.dumps(cached(backwards, tmp_path / "cache")))
    assert all(np.array_equal(fast.image(i), samples.image(9 - i)) for i in range(10))
    assert len(pickle.dumps(fast)) < 10_000


def test_another_view_is_another_cache(folder, tmp_path):
    cached(load(folder), tmp_path / "cache")
    other = cached(load_data(str(folder), view=View(20)), tmp_path / "cache")
    assert other.image(0).shape == (20, 20, 3)


def test_finished_work_is_not_repeated(folder, tmp_path, monkeypatch):
    samples, decoded, original = load(folder), [], _cache._pixels
    monkeypatch.setattr(_cache, "CHUNK", 3)

    def decode(samples, index):
        decoded.append(index)
        if index == 7 and decoded.count(0) == 2 and 8 not in decoded:
            decoded.append(8)
            raise KeyboardInterrupt
        return original(samples, index)

    monkeypatch.setattr(_cache, "_pixels", decode)
    with pytest.raises(KeyboardInterrupt):
        cached(samples, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.npy"))
    (journal,) = (tmp_path / "cache").glob("*.progress")
    assert journal.read_text() == "0 3\n3 6\n"
    journal.write_text("0 3\n3 6\n6 10")  # a torn line counts for nothing
    decoded[:] = [0, 8]
    fast = cached(samples, tmp_path / "cache")
    assert sorted(decoded) == [0, 0, 6, 7, 8, 8, 9]
    assert all(np.array_equal(fast.image(i), samples.image(i)) for i in range(10))


def test_a_killed_process_leaves_no_whole_file_and_is_gone_on_with(folder, tmp_path):
    code = f"""
        import pathlib, time
        from robustbench_kpca.data.io import cache as _cache
        from robustbench_kpca.data.request import View
        from robustbench_kpca.data.load import load_data
        _cache.CHUNK = 2
        samples = load_data({str(folder)!r}, view=View(16))
        def slowly(done, total):
            print(done, flush=True)
            if done == 4:
                time.sleep(60)
        _cache.cached(samples, pathlib.Path({str(tmp_path / "c")!r}), slowly)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert [process.stdout.readline() for _ in range(2)] == ["2\n", "4\n"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not list((tmp_path / "c").glob("*.npy"))
    samples = load(folder).take(range(9, -1, -1))  # the order of the samples is no part of a cache
    fast = cached(samples, tmp_path / "c")
    assert all(np.array_equal(fast.image(i), samples.image(i)) for i in range(10))


def test_two_processes_build_it_once(folder, tmp_path):
    code = f"""
        import pathlib, time
        from robustbench_kpca.data.io import cache as _cache
        from robustbench_kpca.data.request import View
        from robustbench_kpca.data.load import load_data
        _cache.CHUNK = 2
        samples = load_data({str(folder)!r}, view=View(16))
        seen = []
        _cache.cached(samples, pathlib.Path({str(tmp_path / "c")!r}), lambda d, t: (seen.append(d), time.sleep(0.1)))
        print(len(seen))
    """
    started = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = sorted(int(process.communicate(timeout=120)[0]) for process in started)
    assert said == [0, 5]


def test_images_of_different_sizes_are_refused_and_nothing_stays(tmp_path):
    class Odd(ArraySamples):
        def image(self, index):
            return np.zeros((4, 4 + (index == 2), 3), np.uint8)

    images = np.zeros((3, 4, 4, 3), np.uint8)
    samples = Odd(images, [0, 0, 0], name="odd", split="all", ids=["a", "b", "c"], classes=1)
    with pytest.raises(BadInputError, match=r"'c' .*'a'"):
        cached(samples, tmp_path / "cache")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and not path.name.startswith(".")] == []


def test_float_images_are_refused(tmp_path):
    with pytest.raises(BadInputError, match="float"):
        cached(as_dataset(torch.zeros(2, 3, 4, 4), [0, 1]), tmp_path / "cache")


def test_a_full_disk_is_one_line(folder, tmp_path):
    samples = load_data(str(folder), view=View(64))
    with full_disk(), pytest.raises(EvaluationError, match="disk space"):
        cached(samples, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.npy"))
    assert cached(samples, tmp_path / "cache").image(0).shape == (64, 64, 3)


def test_a_damaged_cache_is_one_line(folder, tmp_path):
    fast = cached(load(folder), tmp_path / "cache")
    fast.path.write_bytes(fast.path.read_bytes()[:-100])
    with pytest.raises(BadInputError, match="remove it"):
        cached(load(folder), tmp_path / "cache")


def test_reading_needs_no_decoding_and_originals_stay_untouched(folder, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.png")}
    fast = cached(load(folder), tmp_path / "cache")
    image = fast.image(0)
    image[:] = 0  # a copy: the cache cannot be written by accident
    assert fast.image(0).any()
    time.sleep(0.01)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.png")} == before
