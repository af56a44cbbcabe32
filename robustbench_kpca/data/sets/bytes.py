"""Texts of your own byte by byte, as the Long Range Arena's Text has IMDB; or generated ones on two topics.

`bytes:FOLDER` reads the tables that `texts:FOLDER` reads. The first 4,096 bytes are kept, or so many as
`bytes:length=1000:FOLDER` says. Without a folder texts are drawn (`_byte_texts`); the label is the topic.
"""

import numpy as np

from robustbench_kpca.data.io.text_table import TEXT
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.samples import ArraySamples
from robustbench_kpca.data.sets._byte_texts import load_rows, written


def load(request: Request) -> ArraySamples:
    """Return `test` (the default), `val` or `train`."""
    return load_rows(request, "bytes", (TEXT,), draw)


def draw(rng: np.random.Generator, label: int, most: int) -> tuple[str, ...]:
    """Return a text on the topic of its label."""
    return (written(rng, label, most),)
