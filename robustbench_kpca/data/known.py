"""What is known of data by their digest. Nothing here needs torch or numpy.

Digests are the same on every machine: digits, shapes, listops and grammar are computed in whole numbers or exact
fractions, and waves in double precision, rounded to single. Not here: `photos`, whose pixels depend on the JPEG
decoder.
"""

import lzma
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from robustbench_kpca.data.shifted_imagenet import SHIFTED


class Known(NamedTuple):
    """A whole split: its number of samples, and its digest as `Dataset.digest` computes it."""

    n: int
    digest: str


KNOWN: Mapping[tuple[str, str], Known] = {
    ("digits", "train"): Known(1250, "dee4930e0910c3460c0ac3466714b69b50580458f968b6db8c80c9e94b675fa4"),
    ("digits", "val"): Known(183, "01cf3e9d0b44db07f269c061cb415c2274a0d9f9faba35514a0fb79bb1bd5242"),
    ("digits", "test"): Known(364, "3066c18d15dc2d62fc19a715d9f0f14cc19bd84d6679abb1936a77bfe38fd475"),
    ("shapes", "train"): Known(1500, "ea26a1a15e029ca503817adacdf42c92e113445265ae748e1c07853a7441d4aa"),
    ("shapes", "val"): Known(200, "3ab2bc0052f93a282111aef6746a5db0850388c184855d09bca6af57f974a50a"),
    ("listops", "train"): Known(20000, "22ccd3d7b911b60c94f847a3e53beaec06a0c705b609cf827f87875e80d1fa70"),
    ("listops", "val"): Known(500, "1f4123dc28073d3611eedb3e675333ffb996bee8680bc98dcc0a01ef013bd2e0"),
    ("listops", "test"): Known(1000, "6ac21729936b3bb6b8f299ca7a0bcc1479030984f71daa63bfd78794e1b67085"),
    ("grammar", "train"): Known(12800, "3466bc0cc9e66b4e950665599bd4863a00524b66ce4bd99700f915badd018b42"),
    ("grammar", "val"): Known(1280, "b3c4de62086d4800d7f2a1533b3fa72d8871700934ad085d272fb2cef31e4f22"),
    ("grammar", "test"): Known(1280, "f7676125da2e88998746a828b9326a2c7409f74f6501f740345f798480e51601"),
    ("waves", "train"): Known(4000, "bdb2edab91e853e043bc84b7ea15ac6fefcdd4a1636135538b9e172f856bbb6e"),
    ("waves", "val"): Known(500, "723cc5928ad24fafdeb000c748ba1184f6050ed3bad66d3008b9a30656aa3617"),
    ("waves", "test"): Known(1000, "fa610e1c0b0f4cc17942d9409c1cfcc64d2004421edd05a68d571744587f6244"),
}

CLASSES: Mapping[str, int] = {"digits": 10, "shapes": 8, "listops": 10, "grammar": 50, "waves": 4}
"""Classes of these sets, or words of the vocabulary."""

_RARE = dict.fromkeys(("imagenet-a", "imagenet-o", "imagenet-r"), 10_000)
_PUBLISHED: Mapping[str, Mapping[str, int]] = {
    "imagenet": {"train": 1_281_167, "val": 50_000, **_RARE},
    "ade20k": {"train": 20_210, "val": 2_000},
    "wikitext103": {"train": 103_227_021, "val": 217_646, "test": 245_569},
}


def published(name: str, split: str) -> int | None:
    """Return the number of images or words of a split as published; None for other sets than those of the papers."""
    if name in SHIFTED:
        return SHIFTED[name].images
    return _PUBLISHED.get(name, {}).get(split)


SAMPLES = Path(__file__).parent / "lists" / "samples.txt.xz"
"""A line for each digest of these sets, and of the data of committed boards (`tests/forgery/known_samples.py`)."""


@cache
def labels_of(digest: str) -> Mapping[str, str]:
    """Return the samples that a digest stands for, with their labels ("" where there are none); empty if unknown."""
    cells = (cell.partition(",") for cell in _lines().get(digest, "").split("\t") if cell)
    return {name: label for label, _, name in cells}


@cache
def _lines() -> Mapping[str, str]:
    lines = lzma.decompress(SAMPLES.read_bytes()).decode().splitlines()
    return {digest: cells for digest, _, cells in (line.partition("\t") for line in lines)}


PIECES: Mapping[str, str] = {"photos": "patches of two photographs"}
"""Sets whose samples are pieces of few pictures. A test over such samples says nothing of other pictures."""
