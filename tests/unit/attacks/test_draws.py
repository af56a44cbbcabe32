"""The batch's draws: each sample's own, evenly spread, and those of the published generator."""

import math

import numpy as np
import pytest
import torch
from _stand_in import DEVICE, stand_in
from hypothesis import given
from hypothesis import strategies as st

from robustbench_kpca._core.randomness import generator
from robustbench_kpca.attacks.shared.ball import uniform_in_ball
from robustbench_kpca.attacks.shared.draws import signs, uniforms
from robustbench_kpca.attacks.shared.generators import _mix, first_uniforms, philox
from robustbench_kpca.protocols.threat import Threat

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mixed(word):
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def words(keys, counters, count):
    """Random words by numpy's unsigned integers: SplitMix64 (Steele, Lea & Flood 2014) from a hashed state."""
    state = mixed(np.array(keys, np.uint64)) + np.array(counters, np.uint64) * GOLDEN
    return mixed(mixed(state)[:, None] + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN)


def test_the_generator_is_splitmix64():
    """The first outputs from state 0, as in the authors' algorithm written out in integers."""
    golden, mask, state, expected = 0x9E3779B97F4A7C15, 2**64 - 1, 0, []
    for _ in range(5):
        state = (state + golden) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        expected.append(z ^ (z >> 31))
    assert expected[0] == 0xE220A8397B1DCDAF  # the published first word of seed 0
    states = torch.tensor([(number * golden & mask) - (number * golden & 2**63) * 2 for number in range(1, 6)])
    assert [word & mask for word in _mix(states).tolist()] == expected
    assert mixed(np.arange(1, 6, dtype=np.uint64) * GOLDEN).tolist() == expected


@given(
    rows=st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**40)), min_size=1, max_size=4),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
)
def test_draws_have_the_bits_of_unsigned_integers(rows, shape):
    keys, counters = zip(*rows, strict=True)
    size, given_rows = math.prod(shape), (torch.tensor(keys), torch.tensor(counters))
    expected = (words(keys, counters, size) >> np.uint64(11)) * 2.0**-53
    assert np.array_equal(uniforms(*given_rows, size).numpy(), expected)
    bits = np.unpackbits(words(keys, counters, -(-size // 64)).view(np.uint8), axis=1, count=size)
    flips = signs(*given_rows, torch.zeros(len(rows), *shape))
    assert np.array_equal(flips.flatten(1).numpy(), bits.astype(np.float32) * 2 - 1)


@given(keys=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=3), count=st.integers(1, 40))
def test_the_words_of_a_batch_are_those_of_numpys_philox(keys, count):
    expected = np.stack([generator(key).bit_generator.random_raw(count) for key in keys])
    assert np.array_equal(philox(torch.tensor(keys), count).numpy().view(np.uint64), expected)


@pytest.mark.parametrize("threat", [Threat("linf", 0.1), Threat("l0", 2)], ids=lambda threat: threat.norm)
def test_starts_are_drawn_on_the_device_as_the_host_draws_them(threat):
    keys, centre = torch.tensor([5, 2**63 - 1, 7]), torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with stand_in() as counter:
        there = keys.to(DEVICE), centre.to(DEVICE)
        crossed = counter.load.uploaded
        drawn = [first_uniforms(there[0], 9, DEVICE), uniform_in_ball(there[1], threat, there[0])]
        assert counter.load.uploaded - crossed < centre[0, 0].nbytes
        drawn = [values.cpu() for values in drawn]
    assert torch.equal(drawn[0], first_uniforms(keys, 9, keys.device))
    assert torch.equal(drawn[1], uniform_in_ball(centre, threat, keys))
    rows = [generator(key).uniform(-0.1, 0.1, centre[0].shape) for key in keys.tolist()]
    if threat.norm == "linf":
        expected = (centre + torch.from_numpy(np.stack(rows)).float()).clamp(0, 1)
        assert torch.allclose(drawn[1], expected, atol=1e-7)


def test_draws_belong_to_the_sample_and_the_device_of_its_key():
    keys, counters = torch.tensor([5, 2**62, 7]), torch.tensor([0, 3, 9])
    whole = uniforms(keys, counters, 6)
    assert torch.equal(uniforms(keys[1:2], counters[1:2], 6), whole[1:2])
    assert torch.equal(uniforms(keys, counters, 3), whole[:, :3])
    like = torch.zeros(3, 3, 5, 7)
    assert torch.equal(signs(keys[2:], counters[2:], like[2:]), signs(keys, counters, like)[2:])
    keys, counters, like = torch.tensor([5, 2**62, 7]), torch.tensor([0, 3, 9]), torch.zeros(3, 3, 5, 7)
    with stand_in() as counter:
        there = keys.to(DEVICE), counters.to(DEVICE)
        crossed = counter.load.uploaded
        ours = [signs(*there, like.to(DEVICE)).cpu(), uniforms(*there, 9).cpu()]
        assert counter.load.uploaded == crossed + like.nbytes
    assert torch.equal(ours[0], signs(keys, counters, like))
    assert torch.equal(ours[1], uniforms(keys, counters, 9))


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
