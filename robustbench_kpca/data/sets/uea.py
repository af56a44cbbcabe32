"""A problem of the UEA or UCR archive: time series with one label each, from NAME_TRAIN.ts and NAME_TEST.ts.

Bagnall et al. (2018), "The UEA multivariate time series classification archive", arXiv:1811.00075. Give the folder of
one problem: `uea:Multivariate_ts/BasicMotions`. The archive has two parts, and `TEST` is `test`. Of `TRAIN`, every
fifth series of each class is `val` and the others are `train`, so that no choice has to look at the test part.

Values are in units of the standard deviation of `TRAIN`, by dimension, around its mean; so eps and the severities of
corruptions mean the same on every problem. Missing values are 0, the mean, and shorter series end with 0.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.forms import SIGNALS
from robustbench_kpca.data.io.place import stored_folder
from robustbench_kpca.data.io.ts_file import Series, TimeSeriesFile, read_ts
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.samples import ArraySamples

SPLITS = ("test", "val", "train")
HELD_OUT = 5  # every fifth training series of a class is `val`


def load(request: Request) -> ArraySamples:
    """Return `test` (the default), `val` or `train`."""
    split = request.split_of("uea", SPLITS)
    root = stored_folder("uea", request.folder)
    train, test = (read_ts(_file(root, part)) for part in ("TRAIN", "TEST"))
    if (train.classes, train.dimensions) != (test.classes, test.dimensions):
        raise BadInputError(
            f"{train.name}: TRAIN has {train.dimensions} dimensions and classes {', '.join(train.classes)[:60]}, TEST "
            f"{test.dimensions} and {', '.join(test.classes)[:60]}",
            expected="the same in both files",
        )
    length, mean, std = max(train.longest, test.longest), *_scale(train)
    source = test if split == "test" else train
    chosen = [index for index, part in enumerate(_parts(source.labels)) if split in ("test", part)]
    signals = np.zeros((len(chosen), train.dimensions, 1, length), np.float32)
    for row, index in zip(signals, chosen, strict=True):
        _fill(row[:, 0], source.series[index], mean, std)
    return ArraySamples(
        torch.from_numpy(signals),
        [source.labels[index] for index in chosen],
        name=f"uea-{train.name}",
        split=split,
        classes=len(train.classes),
        class_names=train.classes,
        form=SIGNALS,
        ids=[f"{train.name}/{'TEST' if split == 'test' else 'TRAIN'}/{index:05d}" for index in chosen],
    )


def _file(root: Path, part: str) -> Path:
    files = sorted(root.glob(f"*_{part}.ts"))
    if len(files) != 1:
        raise BadInputError(
            f"{root} has {len(files)} files *_{part}.ts",
            expected="the folder of one problem: NAME_TRAIN.ts, NAME_TEST.ts",
        )
    return files[0]


def _scale(train: TimeSeriesFile) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of each dimension over all known values; 1 for a constant dimension."""
    values_of = [np.concatenate([x[d][~np.isnan(x[d])] for x in train.series]) for d in range(train.dimensions)]
    mean = np.array([values.mean() if len(values) else 0.0 for values in values_of])
    std = np.array([values.std() if len(values) else 0.0 for values in values_of])
    return mean, np.where(std > 0, std, 1.0)


def _fill(row: NDArray[np.float32], series: Series, mean: NDArray[np.float64], std: NDArray[np.float64]) -> None:
    """Write one series in standard units to `row`, (dimensions, length), which is 0 before."""
    for channel, values, centre, unit in zip(row, series, mean, std, strict=True):
        channel[: len(values)] = np.nan_to_num((values - centre) / unit, nan=0.0)


def _parts(labels: list[int]) -> list[str]:
    """Divide the file TRAIN: the fifth, tenth, ... series of each class is `val`, the others are `train`."""
    counts: dict[int, int] = {}
    parts = []
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
        parts.append("train" if counts[label] % HELD_OUT else "val")
    return parts
