"""Pixels as tokens: grey levels of pictures, smaller and fewer ones, refusals."""

import numpy as np
import pytest
from PIL import Image

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.sets.cifar10 import BINARY


@pytest.fixture
def cifar(tmp_path):
    (tmp_path / BINARY).mkdir()
    rng = np.random.default_rng(0)
    for file in ["test_batch", *(f"data_batch_{number}" for number in range(1, 6))]:
        rows = rng.integers(0, 256, (40, 1 + 3072), dtype=np.uint8)
        rows[:, 0] = np.arange(40) % 10
        (tmp_path / BINARY / f"{file}.bin").write_bytes(rows.tobytes())
    return tmp_path


@pytest.mark.parametrize("source", ["pixels:{}", "pixels:cifar10:{}"])
def test_a_picture_is_1024_grey_levels(cifar, source):
    tokens, pictures = load_data(source.format(cifar)), load_data(f"cifar10:{cifar}")
    assert tokens.images.shape == (40, 1, 1, 1024)
    assert (tokens.labels, tokens.ids, tokens.name) == (pictures.labels, pictures.ids, "pixels-cifar10")
    for index in range(40):
        grey = np.asarray(Image.fromarray(pictures.image(index)).convert("L")).astype(int).ravel()
        assert abs(tokens.images[index, 0, 0].numpy() - 2 - grey).max() <= 1  # Pillow rounds, and this rounds down


def test_smaller_pictures_are_means_of_squares(cifar):
    whole, small = load_data(f"pixels:{cifar}"), load_data(f"pixels:side=16:{cifar}")
    levels = whole.images[3, 0, 0].reshape(32, 32) - 2
    assert small.images[3, 0, 0].reshape(16, 16)[5, 9] - 2 == levels[10:12, 18:20].sum() // 4
    assert small.name == "pixels-cifar10-side16"
    some = load_data(f"pixels:side=8,train=20:{cifar}", "train")
    assert sorted(some.labels) == sorted(list(range(10)) * 2)
    assert len(load_data(f"pixels:side=8,train=20:{cifar}", "val")) == 10


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("pixels:side=5:digits", "a divisor"),
        ("pixels:size=5:digits", "NAME=NUMBER"),
        ("pixels:waves", "square pictures"),
        ("pixels:shapes", "has no split 'test'|square pictures"),
        ("pixels:nowhere", "does not contain CIFAR-10"),
    ],
)
def test_what_has_no_such_pixels_is_refused(source, message):
    with pytest.raises(BadInputError, match=message) as caught:
        load_data(source)
    assert "\n" not in str(caught.value)
