"""Generated: signals of two channels and 32 places, a wave of one of four frequencies in noise.

Synthetic, since no time series comes with the libraries that this package needs; the best possible accuracy is known.
With k = 2, 3, 5, 7 periods, a phase p that is uniform, and independent noise n of standard deviation `NOISE`,

    x(t) = ( sin(2 pi k t / 32 + p), cos(2 pi k t / 32 + p) ) + n(t).

The waves of a frequency span a plane, and the planes are orthogonal. So the best classifier takes the frequency with
the largest energy. Its accuracy is that of noncoherent detection of M = 4 orthogonal signals (Proakis & Salehi 2008,
"Digital Communications", section 4.5), with g = 32 / (2 NOISE^2):

    P = sum_{n=0}^{M-1} (-1)^n C(M-1, n) / (n + 1) exp(-n g / (n + 1))

Values are divided by their standard deviation, sqrt(1/2 + NOISE^2).
"""

import math
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.data.forms import SIGNALS
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.samples import ArraySamples

SPLITS = {"test": 1_000, "val": 500, "train": 4_000}
PERIODS = (2, 3, 5, 7)
LENGTH = 32
NOISE = 0.6
SEED = 0


def load(request: Request) -> ArraySamples:
    """Return `test` (the default; 1,000 signals), `val` (500) or `train` (4,000); all classes are equally frequent."""
    request.refuse_folder("waves")
    split = request.split_of("waves", list(SPLITS))
    labels = [index % len(PERIODS) for index in range(SPLITS[split])]
    return ArraySamples(
        _drawn(split),
        labels,
        name="waves",
        split=split,
        classes=len(PERIODS),
        form=SIGNALS,
        ids=[f"waves/{split}/{index:04d}" for index in range(len(labels))],
        class_names=[f"{count} periods" for count in PERIODS],
    )


@cache
def _drawn(split: str) -> torch.Tensor:
    signals = [draw(SEED, split, index) for index in range(SPLITS[split])]
    return torch.from_numpy(np.stack(signals))[:, :, None]


def draw(seed: int, split: str, index: int, noise: float = NOISE) -> NDArray[np.float32]:
    """Draw a signal of class `index` modulo 4, float32 (2, 32); it is a function of the arguments only."""
    rng = generator(sample_key(seed, f"waves/{split}", str(index)))
    angle = 2 * np.pi * (PERIODS[index % len(PERIODS)] * np.arange(LENGTH) / LENGTH + rng.uniform())
    clean = np.stack([np.sin(angle), np.cos(angle)])
    return ((clean + rng.normal(0, noise, clean.shape)) / math.sqrt(0.5 + noise**2)).astype(np.float32)
