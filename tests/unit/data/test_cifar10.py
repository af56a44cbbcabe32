"""CIFAR-10 from its two layouts: whole files are read, damaged ones are refused in one line."""

import io

import numpy as np
import pytest
from PIL import Image

from robustbench_kpca import load_data
from robustbench_kpca._core.errors import BadInputError


def jpeg(side=32):
    file = io.BytesIO()
    Image.new("RGB", (side, side), (40, 80, 120)).save(file, "JPEG")
    return file.getvalue()


def copy(folder, *, labels=3, files=(32, 32, 32), names=3, offset=None):
    parts = [jpeg(side) for side in files]
    ends = np.cumsum([0, *map(len, parts)]) if offset is None else np.array(offset)
    path = folder / "cifar10" / "cifar10_test_jpeg.npz"
    path.parent.mkdir()
    np.savez(
        path, jpeg=np.frombuffer(b"".join(parts), np.uint8), offset=ends, y=np.arange(labels),
        name=np.array([f"{i}" for i in range(names)]),
    )  # fmt: skip
    return path


def test_a_copy_is_read(tmp_path):
    copy(tmp_path)
    samples = load_data(f"cifar10:{tmp_path}")
    assert (samples.name, samples.labels, samples.ids) == ("cifar10-jpeg", [0, 1, 2], ["test/0", "test/1", "test/2"])
    assert abs(samples.tensors()[0][2].mean((1, 2)).numpy() * 255 - (40, 80, 120)).max() < 3


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ({"files": (32, 32)}, "3 labels"),
        ({"files": (32, 32, 32, 32)}, "3 labels"),
        ({"names": 2}, "2 names"),
        ({"files": (32, 1, 32)}, "image 1 has 1 x 1 pixels"),
        ({"offset": [0, 5, 3, 9]}, "offsets"),
    ],
)
def test_a_copy_whose_parts_do_not_fit_is_refused(tmp_path, spoilt, message):
    """Else images would be whatever was in memory."""
    copy(tmp_path, **spoilt)
    with pytest.raises(BadInputError, match=f"cannot be read .*{message}"):
        load_data(f"cifar10:{tmp_path}")


@pytest.mark.parametrize("keep", [0, 300])
def test_a_cut_copy_is_refused(tmp_path, keep):
    path = copy(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadInputError, match="cannot be read"):
        load_data(f"cifar10:{tmp_path}")


def test_the_official_files_are_read_and_a_part_of_them_is_known_to_be_one(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (6, 40, 3 * 32 * 32), dtype=np.uint8)
    labels = (np.arange(40) % 10).astype(np.uint8)
    for name, part in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], images, strict=True):
        (folder / f"{name}.bin").write_bytes(np.hstack([labels[:, None], part]).tobytes())
    test, train, val = (load_data(f"cifar10:{tmp_path}", part) for part in ("test", "train", "val"))
    assert (len(test), len(train), len(val), test.expected) == (40, 190, 10, 10_000)
    assert np.array_equal(test.image(7).transpose(2, 0, 1).ravel(), images[5, 7])
    assert (test.name, test.labels) == ("cifar10", labels.tolist())
    assert not set(train.ids) & set(val.ids)
    assert sorted(val.labels) == list(range(10))


def test_the_first_thousand_test_images_are_those_that_robustbench_attacks(tmp_path):
    """They are the first of `test`, in its order, not spread over it."""
    (tmp_path / "cifar-10-batches-bin").mkdir()
    labels = np.random.default_rng(0).integers(0, 10, 1002, dtype=np.uint8)
    rows = np.hstack([labels[:, None], np.zeros((1002, 3 * 32 * 32), np.uint8)])
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(rows.tobytes())
    test, first = (load_data(f"cifar10:{tmp_path}", split) for split in ("test", "first1000"))
    assert (len(test), first.split, first.expected) == (1002, "first1000", 1000)
    assert (first.ids, first.labels) == (test.ids[:1000], labels[:1000].tolist())
