"""Pixels as tokens: CIFAR-10 in grey, 1,024 tokens a picture, as the Long Range Arena's Image; not included.

`pixels:SET` shows another set of pictures of one square size, such as `pixels:digits` or `pixels:cifar10:FOLDER`.
`pixels:side=8,train=20000` has smaller pictures, whose values are the means of squares, and fewer to train on. Grey is
(299 R + 587 G + 114 B) / 1000, rounded down, row by row. A token is that level plus 2: 0 is padding, 1 an unknown word.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data import DATASETS
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.forms import TOKENS
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.samples import ArraySamples, Samples
from robustbench_kpca.data.sets._sized import name_of, require_within, sized

LEVELS = 2


@dataclass(frozen=True)
class Size:
    """Limits of the pictures.

    Attributes:
        side: side of a picture, in pixels.
        train: pictures of the training part, evenly over the classes; 0: all.
    """

    side: int = 32
    train: int = 0

    def __post_init__(self) -> None:
        require_within(self, "pixels", {"train": 0}, {"side": 1024})


def load(request: Request) -> ArraySamples:
    """Return a split of the pictures, by default `test`."""
    size, source = sized(Size, "pixels", request.folder)
    name, _, folder = source.partition(":")
    if source and name not in DATASETS:
        name, folder = "cifar10", source
    pictures: Dataset = DATASETS.get(name or "cifar10")(replace(request, folder=folder))
    first = pictures.image(0)
    if not isinstance(pictures, Samples) or not isinstance(first, np.ndarray) or first.shape[0] != first.shape[1]:
        raise BadInputError(f"pixels:{source}", expected="a set of square pictures with labels, such as cifar10")
    if len(first) % size.side:
        raise BadInputError(f"pictures of {len(first)} pixels with side={size.side}", expected="a divisor")
    if size.train and pictures.split == "train":
        pictures = pictures.spread(size.train)
    rgb = np.stack([pictures.image(index) for index in range(len(pictures))]).astype(np.int64)
    grey, times = rgb @ np.array([299, 587, 114]) // 1000, len(first) // size.side
    means = grey.reshape(len(grey), size.side, times, size.side, times).sum((2, 4)) // times**2
    tokens = torch.from_numpy(means).flatten(1)[:, None, None].float() + LEVELS
    samples = ArraySamples(
        tokens, pictures.labels, name=name_of(f"pixels-{pictures.name}", size), split=pictures.split, ids=pictures.ids,
        classes=pictures.classes, class_names=pictures.class_names, form=TOKENS,
    )  # fmt: skip
    samples.expected = pictures.expected
    return samples
