"""The batch's draws: each sample's own, evenly spread, and those of the published generator."""

import numpy as np
import pytest
import torch

from robustbench_kpca.attacks.shared.draws import _mix, signs, uniforms


def test_the_generator_is_splitmix64():
    """The first outputs from state 0, as in the authors' algorithm written out in integers."""
    golden, mask, state, expected = 0x9E3779B97F4A7C15, 2**64 - 1, 0, []
    for _ in range(5):
        state = (state + golden) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        expected.append(z ^ (z >> 31))
    assert expected[0] == 0xE220A8397B1DCDAF  # the published first word of seed 0
    words = _mix(np.arange(1, 6, dtype=np.uint64) * np.uint64(golden))
    assert words.tolist() == expected


def test_draws_belong_to_the_sample():
    keys, counters = torch.tensor([5, 2**62, 7]), torch.tensor([0, 3, 9])
    whole = uniforms(keys, counters, 6)
    assert torch.equal(uniforms(keys[1:2], counters[1:2], 6), whole[1:2])
    assert torch.equal(uniforms(keys, counters, 3), whole[:, :3])
    like = torch.zeros(3, 3, 5, 7)
    assert torch.equal(signs(keys[2:], counters[2:], like[2:]), signs(keys, counters, like)[2:])


@pytest.mark.parametrize("along", ["keys", "counters", "words"])
def test_draws_are_uniform_and_independent(along):
    """Mean, variance, bins and neighbours' correlation, each within five standard errors."""
    n = 40_000
    line, still = torch.arange(n), torch.full((n,), 3)
    if along == "words":
        u = uniforms(still[:1], still[:1], n)[0].numpy()
    else:
        u = uniforms(*((line, still) if along == "keys" else (still, line)), 1)[:, 0].numpy()
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 5 * np.sqrt(1 / 12 / n)
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 5 / np.sqrt(n)
    bins = np.histogram(u, 32, (0, 1))[0]
    assert ((bins - n / 32) ** 2 / (n / 32)).sum() < 31 + 5 * np.sqrt(62)
    flips = signs(line[:500], still[:500], torch.zeros(500, 1, 8, 8)).numpy()
    assert set(np.unique(flips)) == {-1.0, 1.0}
    assert abs(flips.mean()) < 5 / np.sqrt(flips.size)
    assert np.abs(np.corrcoef(flips.reshape(500, -1))[0, 1:]).max() < 5 / np.sqrt(64)
