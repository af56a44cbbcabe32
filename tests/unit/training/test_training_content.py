"""The digest of files that a training reads: any byte of a small folder, a sample of a large one."""

import os

import pytest

from robustbench_kpca.training import content
from robustbench_kpca.training.content import content_sha256, spread


@pytest.fixture
def small_steps(monkeypatch):
    """At most 6 places of 4 bytes."""
    monkeypatch.setattr(content, "PLACES", 6)
    monkeypatch.setattr(content, "BLOCK", 4)


def files_of(folder, *contents):
    paths = [folder / f"{number}.bin" for number in range(len(contents))]
    for path, data in zip(paths, contents, strict=True):
        path.write_bytes(data)
    return paths


def changed(paths, number, place):
    """The digest when one byte is another, which is put back."""
    data = paths[number].read_bytes()
    paths[number].write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    try:
        return content_sha256(paths)
    finally:
        paths[number].write_bytes(data)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("sizes", [(1,), (24,), (8, 3, 5), (4, 4, 4, 4, 4, 1)])
def test_every_byte_of_few_small_files_counts(tmp_path, sizes):
    paths = files_of(tmp_path, *(os.urandom(size) for size in sizes))
    whole = content_sha256(paths)
    assert all(changed(paths, number, place) != whole for number, size in enumerate(sizes) for place in range(size))


@pytest.mark.usefixtures("small_steps")
def test_of_a_large_file_beginning_and_end_count_and_places_between(tmp_path):
    paths = files_of(tmp_path, os.urandom(200))
    counting = [place for place in range(200) if changed(paths, 0, place) != content_sha256(paths)]
    assert len(counting) == 24
    assert counting[:4] + counting[-4:] == [0, 1, 2, 3, 196, 197, 198, 199]


@pytest.mark.usefixtures("small_steps")
def test_no_files_have_no_digest_and_of_many_all_sizes_count(tmp_path):
    paths = files_of(tmp_path, *(os.urandom(3) for _ in range(14)))
    whole = content_sha256(paths)
    assert [number for number in range(14) if changed(paths, number, 0) != whole] == [0, 3, 6, 9, 12]
    for path in paths:
        data = path.read_bytes()
        path.write_bytes(data + b"x")
        assert content_sha256(paths) != whole
        path.write_bytes(data)


def test_without_files_there_is_no_digest(tmp_path):
    assert content_sha256([]) == ""
    assert content_sha256([tmp_path / "gone"]) == content_sha256([tmp_path / "gone"]) != ""


@pytest.mark.parametrize("count", [0, 1, 1999, 2000, 2001, 4001, 1_281_167])
def test_places_are_spread(count):
    places = spread(count)
    assert len(places) <= 2000
    assert len(places) >= min(count, 1000)
    assert not places or places[0] == 0
