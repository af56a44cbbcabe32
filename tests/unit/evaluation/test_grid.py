"""The rows of a corruption grid, made in one pass over its cells."""

import numpy as np
import pytest
import torch

from robustbench_kpca import corrupt, load_data
from robustbench_kpca.data.io.remembered import Remembered
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.tasks import task_named

CELLS = [("none", 0), ("gaussian_noise", 1), ("gaussian_noise", 5), ("contrast", 1), ("contrast", 5)]


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", limit=6)


@pytest.fixture(scope="module")
def grid():
    chosen = {"corruptions": ["gaussian_noise", "contrast"], "severities": [1, 5], "clean": True}
    return load_scenario("common-corruptions-32px", chosen)[1]


def rows_of(data, grid, rows, *, workers, batch_size=4):
    how = {"batch_size": batch_size, "workers": workers, "seed": 3, "frost": "generated"}
    found = list(task_named("classification").compute.shown(data, grid, rows, **how))
    numbers = [number for some, _ in found for number in some]
    return numbers, torch.cat([images for _, (images, _) in found]), torch.cat([labels for _, (_, labels) in found])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_row_is_what_corrupt_makes_of_its_image(digits, grid, workers):
    pixels = np.stack([digits.image(index) for index in range(6)])
    made = [
        pixels if at == 0 else corrupt(pixels, name, at, 3, ids=digits.ids, mode="fast", profile=grid.profile)
        for name, at in CELLS
    ]
    expected = torch.from_numpy(np.concatenate(made)).permute(0, 3, 1, 2) / 255
    numbers, images, labels = rows_of(digits, grid, range(30), workers=workers)
    assert numbers == list(range(30))
    assert torch.equal(images, expected)
    assert labels.tolist() == digits.labels * 5


def test_rows_that_are_finished_are_not_made_again(digits, grid):
    _, whole, _ = rows_of(digits, grid, range(30), workers=0)
    numbers, images, _ = rows_of(digits, grid, range(17, 30), workers=0, batch_size=5)
    assert numbers == list(range(17, 30))
    assert torch.equal(images, whole[17:])


def test_pictures_are_read_once_while_they_fit():
    asked = []

    def read(index):
        asked.append(index)
        return np.full(10, index, np.uint8)

    images = Remembered(read, limit=25)
    for _ in range(3):
        assert [int(images(index)[0]) for index in range(4)] == [0, 1, 2, 3]
    assert asked == [0, 1, 2, 3, 2, 3, 2, 3]
