"""Corruptions of signals and tokens: seeded by sample, stronger with severity, and what their formulas say."""

import numpy as np
import pytest

from robustbench_kpca._core.errors import BadInputError, UnknownNameError
from robustbench_kpca._core.randomness import generator
from robustbench_kpca.corruptions import ALL, Cell, corrupt, corrupt_one, corruption_for
from robustbench_kpca.corruptions.signals import SIGNAL_CORRUPTIONS
from robustbench_kpca.corruptions.tokens import TOKEN_CORRUPTIONS
from robustbench_kpca.types import PAD, UNKNOWN

SEVERITIES = range(1, 6)
U = np.linspace(0, 1, 200)
SIGNAL = np.stack([np.sin(9 * U), np.cos(20 * U), U])
WORDS = np.array([*range(2, 62), *[PAD] * 10])


def cell(name, severity, seed=0):
    return Cell(name, severity, next(iter(corruption_for(name).parameters)), "fast", seed)


def sample_of(name):
    return WORDS if name in TOKEN_CORRUPTIONS.names() else SIGNAL


NAMES = [*SIGNAL_CORRUPTIONS.names(), *TOKEN_CORRUPTIONS.names()]


def test_names_are_of_one_kind_and_word_swap_replaces_its_share():
    names = [name for family in ALL for name in family.names()]
    assert len(set(names)) == len(names)
    with pytest.raises(UnknownNameError, match="time_warp"):
        corruption_for("time_wrap")
    for severity, rate in zip(SEVERITIES, corruption_for("word_swap").parameters["tokens"], strict=True):
        made = corrupt_one(WORDS, cell("word_swap", severity), "a")
        assert (made == UNKNOWN).sum() == max(1, int(rate * 60))
        assert np.array_equal(made[made != UNKNOWN], WORDS[made != UNKNOWN])
    empty = np.zeros(5, np.int64)
    assert np.array_equal(corruption_for("word_swap").fast(empty, 0.4, generator(0)), empty)


@pytest.mark.parametrize("name", NAMES)
def test_every_corruption_keeps_its_promises(name):
    sample = sample_of(name)
    kept = sample.copy()
    for severity in SEVERITIES:
        made = corrupt_one(sample, cell(name, severity), "a")
        assert made.shape == sample.shape
        assert made.dtype == sample.dtype
        assert np.array_equal(sample, kept), "the input was changed"
        assert np.array_equal(made, corrupt_one(sample, cell(name, severity), "a"))
        assert not np.array_equal(made, corrupt_one(sample, cell(name, severity), "b"))
        assert not np.array_equal(made, corrupt_one(sample, cell(name, severity, seed=1), "a"))
        assert not np.array_equal(made, sample)


@pytest.mark.parametrize("name", NAMES)
def test_a_higher_severity_changes_more(name):
    sample = sample_of(name).astype(float)
    change = [
        np.mean([np.linalg.norm(corrupt_one(sample_of(name), cell(name, s), str(i)) - sample) for i in range(60)])
        for s in SEVERITIES
    ]
    assert change == sorted(change)
    assert change[-1] > 1.5 * change[0]


def test_noise_dropout_and_drift_have_their_size():
    flat = np.zeros((4, 5_000))
    for severity, sigma in zip(SEVERITIES, corruption_for("signal_noise").parameters["signal"], strict=True):
        assert abs(corrupt_one(flat, cell("signal_noise", severity), "a").std() / sigma - 1) < 0.03
    for severity, share in zip(SEVERITIES, corruption_for("signal_dropout").parameters["signal"], strict=True):
        made = corrupt_one(SIGNAL + 10, cell("signal_dropout", severity), "a")
        assert ((made == 0).any(0) == (made == 0).all(0)).all()
        assert (made == 0).all(0).sum() == round(share * 200)
        assert np.array_equal(made[:, made[0] != 0], (SIGNAL + 10)[:, made[0] != 0])
    for severity, height in zip(SEVERITIES, corruption_for("baseline_drift").parameters["signal"], strict=True):
        moved = corrupt_one(SIGNAL, cell("baseline_drift", severity), "a") - SIGNAL
        assert np.allclose(np.abs(moved).max(1), height)


def test_warped_time_runs_forwards_within_its_bounds():
    """The third channel is u itself, so its corruption is w(u): ends stay, and its slope is in [1 - s, 1 + s]."""
    for severity, s in zip(SEVERITIES, corruption_for("time_warp").parameters["signal"], strict=True):
        for number in range(20):
            made = corrupt_one(SIGNAL, cell("time_warp", severity), str(number))
            w = made[2]
            assert abs(w[0]) < 1e-12
            assert abs(w[-1] - 1) < 1e-12
            slope = np.diff(w) / np.diff(U)
            assert 1 - s - 1e-9 <= slope.min() <= slope.max() <= 1 + s + 1e-9
            assert np.allclose(made[0], np.sin(9 * w), atol=2e-3), "all channels are warped alike"


@pytest.mark.parametrize(
    ("name", "profile", "kind"),
    [("time_warp", "signal", "signals"), ("word_swap", "tokens", "tokens"), ("word_swap_by_line", "words", "words")],
)
def test_images_have_no_corruptions_of_other_data(name, profile, kind):
    with pytest.raises(BadInputError, match=f"is a corruption of {kind}"):
        corrupt(np.zeros((1, 8, 8, 3), np.uint8), name, 1, profile=profile)
