"""Counter-based generators: random numbers of a whole batch at once, on the device of its keys.

Signed integers wrap around, so they have the bits of unsigned ones.
"""

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from robustbench_kpca._core.randomness import generator
from robustbench_kpca.attacks.shared.rows import waits
from robustbench_kpca.types import Keys, Labels

Words = Int64[Tensor, " *words"]
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # 2^64 / golden ratio, as a signed number
_PHILOX = ((0xD2E7470EE14C6C93, 0x9E3779B97F4A7C15), (0xCA5A826395121157, 0xBB67AE8584CAA73B))
"""The factor of each half of a block, and what its key grows by in every round."""
_ROUNDS = 10
_HALF = 2**32 - 1


def splitmix64(keys: Keys, counters: Labels, count: int) -> Int64[Tensor, "batch {count}"]:
    """Draw `count` random 64-bit words per sample.

    SplitMix64 (Steele, Lea & Flood 2014, doi:10.1145/2660193.2660195), with an initial state hashed from (key,
    counter).
    """
    state = _mix(keys) + counters * _GOLDEN
    return _mix(_mix(state)[:, None] + torch.arange(1, count + 1, device=keys.device) * _GOLDEN)


def _mix(word: Words) -> Words:
    for places, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = _shifted(word, places).bitwise_xor_(word).mul_(factor - 2**64)
    return _shifted(word, 31).bitwise_xor_(word)


def philox(keys: Keys, count: int) -> Int64[Tensor, "batch {count}"]:
    """Return the first `count` words of each key's stream, as `_core.randomness.generator` draws them.

    Philox 4x64 of ten rounds (Salmon, Moraes, Dror & Shaw 2011, doi:10.1145/2063384.2063405): block i = 1, 2, ... is a
    function of the counter (i, 0, 0, 0) and the key (key, 0).
    """
    first = torch.arange(1, -(-count // 4) + 1, device=keys.device).expand(len(keys), -1)
    block = [first, *[torch.zeros_like(first)] * 3]
    for number in range(_ROUNDS):
        (factor, grows), (other_factor, other_grows) = _PHILOX
        high, low = _product(block[0], factor)
        other_high, other_low = _product(block[2], other_factor)
        block = [
            other_high ^ block[1] ^ (keys + _signed(number * grows))[:, None],
            other_low,
            high ^ block[3] ^ _signed(number * other_grows),
            low,
        ]
    return torch.stack(block, dim=2).flatten(1)[:, :count]


def uniforms(words: Int64[Tensor, "batch count"]) -> Float64[Tensor, "batch count"]:
    """Return numbers in [0, 1) from words: multiples of 2^-53."""
    return _shifted(words, 11).double().mul_(2.0**-53)


def first_uniforms(keys: Keys, count: int, device: torch.device) -> Float64[Tensor, "batch {count}"]:
    """Draw the first `count` numbers in [0, 1) of each key's stream on a device.

    On a CPU numpy draws them, several times as fast as `philox`; they are the same to the last bit.
    """
    if waits(device):
        return uniforms(philox(keys.to(device), count))
    return torch.from_numpy(np.stack([generator(key).random(count) for key in keys.tolist()]))


def _product(words: Words, factor: int) -> tuple[Words, Words]:
    """Return the upper and the lower 64 bits of an unsigned product."""
    upper, lower = _shifted(words, 32), words & _HALF
    middle = upper * (factor & _HALF) + _shifted(lower * (factor & _HALF), 32)
    carried = lower * (factor >> 32) + (middle & _HALF)
    return upper * (factor >> 32) + _shifted(middle, 32) + _shifted(carried, 32), words * _signed(factor)


def _signed(number: int) -> int:
    """Return the signed number with the lowest 64 bits of a number."""
    return (number + 2**63) % 2**64 - 2**63


def _shifted(word: Words, places: int) -> Words:
    """Shift to the right, with zeros from the left."""
    return (word >> places).bitwise_and_(2 ** (64 - places) - 1)
