"""Pairs of texts byte by byte, as the Long Range Arena's Retrieval: do they belong together? Or generated pairs.

`retrieval:FOLDER` reads `train`, `val` (or `dev`) and `test`, each `.tsv` or `.csv` with columns `text1`, `text2` and
`label`; or the published pairs of the ACL Anthology Network, `new_aan_pairs.{train,eval,test}.tsv`, which have no first
row of names: label, two numbers, two texts. The first 4,096 bytes of each text are kept, or as many as
`retrieval:length=1000:FOLDER` says. Without a folder pairs are drawn (`_byte_texts`): on one of four topics, or on two.
"""

import numpy as np

from robustbench_kpca.data.request import Request
from robustbench_kpca.data.samples import ArraySamples
from robustbench_kpca.data.sets._byte_texts import load_rows, written

TOPICS = 4


def load(request: Request) -> ArraySamples:
    """Return `test` (the default), `val` or `train`."""
    return load_rows(request, "retrieval", (("text1",), ("text2",)), draw)


def draw(rng: np.random.Generator, label: int, most: int) -> tuple[str, ...]:
    """Return two texts, on the same topic if the label is 1."""
    topic = int(rng.integers(TOPICS))
    other = topic if label else (topic + int(rng.integers(1, TOPICS))) % TOPICS
    return written(rng, topic, most), written(rng, other, most)
