"""Stand-in."""

import numpy as np

from robustbench_kpca.data.text import Stream, Text


def swapped_stream(text: Text, corruption: str, severity: int, seed: int) -> tuple[Stream, np.ndarray]:
    rng = np.random.default_rng([seed, severity])
    mask = rng.random(len(text.stream)) < 0.025 * severity
    mask[0] = False
    stream = text.stream.copy()
    stream[mask] = text.vocabulary.numbers.get("AAA", 1)
    return stream, mask
