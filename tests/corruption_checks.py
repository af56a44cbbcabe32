"""What tests of corruptions share: pictures, the oracle's answers, and a test that two samples share a distribution."""

from functools import cache

import numpy as np
from patched import imagecorruptions
from PIL import Image
from scipy import stats
from sklearn.datasets import load_sample_images

from robustbench_kpca._core.randomness import generator
from robustbench_kpca.corruptions import CORRUPTIONS

SEVERITIES = range(1, 6)


@cache
def photographs():
    """Two photographs of 427 x 640: a temple, a flower. Read only."""
    images = load_sample_images().images
    for image in images:
        image.setflags(write=False)
    return images


def photograph(height, width, which=0, top=100, left=200):
    return photographs()[which][top : top + height, left : left + width].copy()


def pictures():
    """One picture of every kind: photographs, not square, small, black, white, noise."""
    return {
        "224": photograph(224, 224),
        "flower": photograph(224, 224, which=1),
        "wide": photograph(97, 160),
        "tall": photograph(161, 90, which=1),
        "32": photograph(32, 32),
        "black": np.zeros((48, 64, 3), np.uint8),
        "white": np.full((64, 48, 3), 255, np.uint8),
        "noise": np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8),
    }


def reference(name, image, severity, seed):
    """What imagecorruptions 1.1.2 makes after `np.random.seed(seed)`, stored as uint8; numpy's state is put back."""
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        return np.uint8(getattr(imagecorruptions(), name)(Image.fromarray(image), severity))
    finally:
        np.random.set_state(state)  # noqa: NPY002


def parameter_of(name, severity, profile="imagecorruptions"):
    return CORRUPTIONS.get(name).parameters[profile][severity - 1]


def exactly(name, image, severity, seed, profile="imagecorruptions"):
    rng = np.random.RandomState(seed)
    return CORRUPTIONS.get(name).exact(image, parameter_of(name, severity, profile), rng)


def fast(name, image, severity, seed, profile="imagecorruptions"):
    return CORRUPTIONS.get(name).fast(image, parameter_of(name, severity, profile), generator(seed))


def differing(ours, theirs):
    assert ours.dtype == theirs.dtype == np.uint8
    assert ours.shape == theirs.shape
    gap = np.abs(ours.astype(int) - theirs)
    return int((gap > 0).sum()), int(gap.max())


STATISTICS = ("mean", "std", "L1 to clean", "rms to clean", "total variation", "% of 0", "% of 255")
CHANNELS = 3
ALPHA = 0.01  # chance that any of FAMILY comparisons of equal distributions fails
FAMILY = len(STATISTICS) * CHANNELS * 19 * 5  # every statistic of every channel of every cell


def statistics(picture, clean):
    """STATISTICS x CHANNELS of one picture."""
    picture, clean = picture.astype(float), clean.astype(float)
    gap, place = picture - clean, (0, 1)
    variation = np.abs(np.diff(picture, axis=0)).mean(place) + np.abs(np.diff(picture, axis=1)).mean(place)
    shares = [100 * (picture == level).mean(place) for level in (0, 255)]
    distances = [np.abs(gap).mean(place), np.sqrt((gap**2).mean(place))]
    return np.array([picture.mean(place), picture.std(place), *distances, variation, *shares])


def z_scores(ours, theirs):
    """Welch's t of (draw, statistic, channel); where both are constant, 0 if they agree, else infinite."""
    gap = ours.mean(0) - theirs.mean(0)
    error = np.sqrt(ours.var(0, ddof=1) / len(ours) + theirs.var(0, ddof=1) / len(theirs))
    constant = error < 1e-9
    return np.where(constant, np.where(np.abs(gap) < 1e-9, 0.0, np.inf), gap / np.where(constant, 1.0, error))


def limit(draws):
    """What no |t| may exceed: two-sided, Bonferroni over FAMILY, the fewest degrees of freedom that Welch allows."""
    return float(stats.t.isf(ALPHA / (2 * FAMILY), draws - 1))


def sample(draw, clean, draws, first=0):
    return np.stack([statistics(draw(first + seed), clean) for seed in range(draws)])


def disagreement(ours, theirs, clean, draws):
    """Largest |t| over its limit: above 1, `ours(seed)` and `theirs(seed)` are distributed differently."""
    own, other = sample(ours, clean, draws), sample(theirs, clean, draws, first=10_000)
    return float(np.abs(z_scores(own, other)).max()) / limit(draws)
