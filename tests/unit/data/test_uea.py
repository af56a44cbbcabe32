"""`.ts` files: what is written is read, bad files are refused by line, and a problem is standardised by its TRAIN."""

import os

import numpy as np
import pytest
import torch

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.io import ts_file
from robustbench_kpca.data.io.ts_file import read_ts
from robustbench_kpca.data.load import load_data

HEADER = "#made by hand\n@problemName Toy\n@timeStamps false\n@missing true\n@univariate false\n@dimensions 2\n"
CLASSES = "@classLabel true walk run\n@data\n"


def write(path, text):
    path.write_text(text)
    return path


def as_text(series, labels, header=HEADER + CLASSES):
    """The format, written by other code than the reader."""

    def field(value):
        return "?" if np.isnan(value) else repr(float(value))

    rows = [
        ":".join([",".join(map(field, one)) for one in dims] + [label])
        for dims, label in zip(series, labels, strict=True)
    ]
    return header + "\n".join(rows) + "\n"


def test_what_is_written_is_read(tmp_path):
    rng = np.random.default_rng(0)
    series = [[rng.normal(size=n) * 10.0 ** rng.integers(-8, 8) for _ in range(2)] for n in (4, 7, 1, 3)]
    series[1][0][2] = np.nan
    found = read_ts(write(tmp_path / "a.ts", as_text(series, ["run", "walk", "run", "walk"])))
    assert (found.name, found.classes, found.labels) == ("Toy", ("walk", "run"), [1, 0, 1, 0])
    assert (found.dimensions, found.longest) == (2, 7)
    for ours, theirs in zip(found.series, series, strict=True):
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(ours, theirs, strict=True))


def test_tags_are_read_in_any_case_and_only_a_few_are_needed(tmp_path):
    text = "@PROBLEMNAME x\n@UnivariaTe false\n\n@ClassLabel TRUE a b\n@DATA\n1, 2 : 3,4,NaN : a \n# c\n5:6:b\n"
    found = read_ts(write(tmp_path / "a.ts", text))
    assert [[len(d) for d in one] for one in found.series] == [[2, 3], [1, 1]]
    univariate = read_ts(write(tmp_path / "b.ts", "@univariate true\n@classLabel true a b\n@data\n1,2:a\n"))
    assert (univariate.name, univariate.dimensions) == ("b", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + CLASSES, "line 8: no series"),
        (HEADER + "@data\n1:2:a\n", "line 7: no class labels"),
        (HEADER + "@classLabel true a\n@data\n", "line 8: no class labels"),
        ("@timestamps true\n", "line 1: @timestamps true"),
        (HEADER + CLASSES + "1,2:3,4:swim\n", "line 9: class 'swim'"),
        (HEADER + CLASSES + "1:2:walk\n1,2:walk\n", "line 10: 1 dimensions"),
        (HEADER + CLASSES + "1,x:3,4:walk\n", "line 9: values '1,x'"),
        (HEADER + CLASSES + "1,inf:3,4:walk\n", "line 9: an infinite value"),
        (HEADER + CLASSES + ":3,4:walk\n", "line 9: values ''"),
    ],
)
def test_bad_files_are_refused_by_line(tmp_path, text, message):
    with pytest.raises(BadInputError, match=message) as caught:
        read_ts(write(tmp_path / "bad.ts", text))
    assert "\n" not in str(caught.value)


def test_sizes_are_bounded(tmp_path, monkeypatch):
    path = write(tmp_path / "a.ts", HEADER + CLASSES + "1,2:3,4:walk\n" * 3)
    monkeypatch.setattr(ts_file, "MOST_VALUES", 11)
    with pytest.raises(BadInputError, match="line 11: more than 11 values"):
        read_ts(path)
    with pytest.raises(BadInputError, match="cannot be read"):
        read_ts(tmp_path / "none.ts")
    (tmp_path / "binary.ts").write_bytes(b"@problemName \xff\xfe\n")
    with pytest.raises(BadInputError, match="cannot be read"):
        read_ts(tmp_path / "binary.ts")
    uneven = HEADER + CLASSES + "1,2:3,4:walk\n1:2:run\n1,2,3:4:walk\n"
    monkeypatch.setattr(ts_file, "MOST_VALUES", 17)  # three series of two dimensions, padded to three values
    with pytest.raises(BadInputError, match="more than 17 values"):
        read_ts(write(tmp_path / "uneven.ts", uneven))
    with pytest.raises(BadInputError, match="0 dimensions; expected 1"):
        read_ts(write(tmp_path / "none.ts", CLASSES.replace("@class", "@univariate false\n@class") + "walk\n"))
    os.mkfifo(tmp_path / "fifo.ts")
    with pytest.raises(BadInputError, match="FIFO"):
        read_ts(tmp_path / "fifo.ts")
    monkeypatch.setattr(ts_file, "MOST_BYTES", 10)
    with pytest.raises(BadInputError, match="bytes"):
        read_ts(path)


@pytest.fixture
def problem(tmp_path):
    """TRAIN: 12 series of lengths 3 to 5; TEST: 4, one longer, with a missing value."""
    rng = np.random.default_rng(1)
    train = [[rng.normal(5, 3, 3 + i % 3), rng.normal(-2, 0.1, 3 + i % 3)] for i in range(12)]
    test = [[rng.normal(5, 3, n), rng.normal(-2, 0.1, n)] for n in (3, 6, 4, 5)]
    test[0][1][1] = np.nan
    write(tmp_path / "Toy_TRAIN.ts", as_text(train, ["walk", "run"] * 6))
    write(tmp_path / "Toy_TEST.ts", as_text(test, ["run", "run", "walk", "walk"]))
    return tmp_path, train, test


def test_a_problem_is_in_units_of_its_training_file(problem):
    folder, train, test = problem
    data = load_data(f"uea:{folder}")
    mean, std = ([f(np.concatenate([one[d] for one in train])) for d in (0, 1)] for f in (np.mean, np.std))
    assert data.images.shape == (4, 2, 1, 6)
    for image, series in zip(data.images[:, :, 0], test, strict=True):
        for d in (0, 1):
            expected = np.zeros(6)
            expected[: len(series[d])] = np.nan_to_num((series[d] - mean[d]) / std[d])
            assert np.allclose(image[d], expected, atol=1e-5)
    assert (data.name, data.labels, data.class_names) == ("uea-Toy", [1, 1, 0, 0], ("walk", "run"))


def test_val_is_the_fifth_series_of_each_class_and_no_other(problem):
    folder, *_ = problem
    train, val = (load_data(f"uea:{folder}", part) for part in ("train", "val"))
    assert val.ids == ["Toy/TRAIN/00008", "Toy/TRAIN/00009"]
    assert len(train) == 10
    assert not set(train.ids) & set(val.ids)
    assert torch.equal(train.take([0]).tensors()[0][0], train.images[0])


def test_folders_that_are_no_problem_are_refused(problem, tmp_path):
    folder, *_ = problem
    write(folder / "Toy_TEST.ts", as_text([[[1.0], [2.0]]], ["walk"], HEADER + CLASSES.replace("run", "swim")))
    with pytest.raises(BadInputError, match="the same in both files"):
        load_data(f"uea:{folder}")
    write(folder / "Other_TEST.ts", "")
    with pytest.raises(BadInputError, match="2 files"):
        load_data(f"uea:{folder}")
