"""Shards: every sample once, names that follow the inputs, files that are checked, exact merging, retries in order."""

import random
import subprocess
import sys

import numpy as np
import pytest

from robustbench_kpca._core.errors import EvaluationError
from robustbench_kpca.evaluation.shard_run import Schedule
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.shards import (
    LARGEST,
    MOST,
    Made,
    Shard,
    merge,
    plan_shards,
    read_made,
    shard_size,
    to_bytes,
)
from robustbench_kpca.records.table import Table

GRID = Table("toy", "corruption", {"sample": "str", "corruption": "str", "severity": "int", "value": "float"})
FLAT = Table("toy", "attack", {"sample": "str", "forwards": "int", "linf": "float"})
CELLS = [("none", 0), ("fog", 1), ("fog", 2), ("blur", 2)]
IDS = [f"image, {number}" for number in range(23)]
MADE = Made(3, 1.25, 4, ("a remark",))


def write_shard(folder, shard, outcomes, made):
    (folder / shard.name).write_bytes(to_bytes(shard, outcomes, made))


def grid(ids, rows_of=lambda name: 1 + len(name) % 3):
    rng = np.random.default_rng(0)
    drawn = {(cell, name): rng.normal(size=3) for cell in CELLS for name in IDS}
    rows = [
        {"sample": name, "corruption": cell[0], "severity": cell[1], "value": drawn[cell, name][row]}
        for cell in CELLS
        for name in ids
        for row in range(rows_of(name))
    ]
    return Outcomes.from_rows(GRID, rows)


def flat(ids):
    return Outcomes.from_rows(
        FLAT, [{"sample": name, "forwards": IDS.index(name), "linf": IDS.index(name) / 7} for name in ids]
    )


@pytest.mark.parametrize("size", [1, 4, 23, 100])
@pytest.mark.parametrize(
    ("make", "table", "cells"), [(grid, GRID, CELLS), (flat, FLAT, CELLS[:1])], ids=["grid", "flat"]
)
def test_merged_shards_are_the_bytes_of_one_run(size, make, table, cells, tmp_path):
    shards = plan_shards(IDS, "key", size)
    assert [name for shard in shards for name in IDS[shard.first : shard.last]] == IDS
    for shard in random.Random(size).sample(shards, len(shards)):
        write_shard(tmp_path, shard, make(IDS[shard.first : shard.last]), MADE)
    assert merge(tmp_path, shards, table, cells).to_csv() == make(IDS).to_csv()


def test_a_shard_is_named_by_everything_that_determines_it_and_status_needs_no_torch(tmp_path):
    shards = plan_shards(IDS, "key", 5)
    others = [*plan_shards(IDS, "other key", 5), *plan_shards([f"{name}'" for name in IDS], "key", 5)]
    others += [shard for shard in plan_shards(IDS, "key", 4) if shard.first != 20]
    assert len({shard.name for shard in [*shards, *others]}) == len(shards) + len(others)
    assert plan_shards(IDS, "key", 5) == shards
    program = (
        "import sys; from robustbench_kpca.cli.main import main; assert not main(['records', 'status', sys.argv[1]])"
    )
    program += "; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)


def test_a_shard_that_is_not_whole_or_not_the_one_asked_for_is_not_read(tmp_path):
    shard, other = plan_shards(IDS, "key", 12)
    assert read_made(tmp_path, shard) is None
    write_shard(tmp_path, shard, flat(IDS[:12]), MADE)
    assert read_made(tmp_path, shard) == MADE
    assert merge(tmp_path, [shard], FLAT, CELLS[:1]).to_csv() == flat(IDS[:12]).to_csv()
    path = tmp_path / shard.name
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert read_made(tmp_path, shard) is None, length
    for place in random.Random(0).sample(range(len(whole)), 60):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert read_made(tmp_path, shard) is None, place
    path.write_bytes(whole)
    path.rename(tmp_path / other.name)  # a name alone proves nothing
    assert read_made(tmp_path, other) is None
    with pytest.raises(EvaluationError, match=other.name):
        merge(tmp_path, [other], FLAT, CELLS[:1])


def test_shards_are_whole_batches_and_not_too_many():
    for samples in (1, 63, 64, 65, 4096, 50_000, MOST * LARGEST * 64):
        for passes in (None, 1, 4, 75):
            size = shard_size(samples, 64, passes)
            assert size % 64 == 0
            assert -(-samples // size) <= MOST
    assert shard_size(360, 64, None) == 64
    assert shard_size(360, 64, 1) == 512  # eight batches, so that one more to check the model costs little
    assert shard_size(360, 64, 75) == 64
    for samples in (10**6, 10**8):  # many samples give many shards: there may be many workers
        assert shard_size(samples, 64, None) == LARGEST * 64


def test_a_failed_shard_is_next_is_tried_twice_more_and_then_given_up():
    one, two = Shard(0, 4, "a"), Shard(4, 8, "b")
    schedule = Schedule([one, two])
    assert schedule.next() == one
    schedule.failed(one, "first")
    assert [schedule.next() for _ in range(3)] == [one, two, None]
    schedule.failed(one, "second")
    assert schedule.next() == one
    schedule.failed(one, "third")
    assert schedule.given_up == {one: "third"}
    assert schedule.open == 1
    schedule.finished(two)
    assert schedule.open == 0


@pytest.mark.parametrize("seed", range(5))
def test_whatever_fails_every_shard_ends_finished_or_given_up(seed):
    drawn = random.Random(seed)
    shards = plan_shards([str(number) for number in range(60)], "key", 1)
    schedule, finished, attempts = Schedule(shards), [], []
    while (shard := schedule.next()) is not None:
        attempts.append(shard)
        if drawn.random() < 0.5:
            schedule.failed(shard, "by chance")
        else:
            schedule.finished(shard)
            finished.append(shard)
    assert not schedule.open
    assert sorted([*finished, *schedule.given_up], key=lambda shard: shard.first) == shards
    assert all(attempts.count(shard) == 3 for shard in schedule.given_up)
    assert all(attempts.count(shard) <= 3 for shard in finished)


@pytest.mark.parametrize("portion", [1, 500, 3000])
@pytest.mark.parametrize("strange", [False, True], ids=["plain", "quoted"])
def test_a_large_merge_makes_the_file_of_one_run(portion, strange, tmp_path, monkeypatch):
    monkeypatch.setattr("robustbench_kpca.records.shards._TOGETHER", portion)
    monkeypatch.setattr("robustbench_kpca.records.text.PORTION", 37)
    ids = [f'image {number}, "{number}"' if strange else f"image {number}" for number in range(101)]
    values = np.random.default_rng(0).normal(size=(len(CELLS), len(ids)))
    values[1, ::7], values[2, ::5], values[0, 3] = np.nan, np.inf, -0.0

    def made(first, last):
        rows = [
            {"sample": ids[place], "corruption": cell[0], "severity": cell[1], "value": values[number, place]}
            for number, cell in enumerate(CELLS)
            for place in range(first, last)
        ]
        return Outcomes.from_rows(GRID, rows)

    shards = plan_shards(ids, "key", 10)
    for shard in shards:
        write_shard(tmp_path, shard, made(shard.first, shard.last), MADE)
    merged, plain = merge(tmp_path, shards, GRID, CELLS), made(0, len(ids))
    assert merged.to_csv() == plain.to_csv()
    assert len(merged) == len(plain)
