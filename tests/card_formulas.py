"""Formulas of docs/decisions/0049 for the cards of answers, written out: `records/trainings.py` is not used."""

import json
from functools import cache


@cache
def files(pack):
    """Return (model, protocol) -> the file of outcomes, of a pack's folder."""
    records = [json.loads(path.read_text()) for path in (pack / "records").glob("*.record.json")]
    assert records
    return {
        (record["spec"]["model"]["name"], record["spec"]["protocol"]["name"]): record["outcomes_file"]["file"]
        for record in records
    }


def residual(numbers):
    """Return the mean square that neither rows nor columns explain."""
    rest = numbers - numbers.mean(1, keepdims=True) - numbers.mean(0) + numbers.mean()
    return (rest**2).sum() / (numbers.shape[0] - 1) / (numbers.shape[1] - 1)


def two_sources(single, by_seed, freedom):
    """Return mean, standard error and degrees of freedom; seeds (rows) are blocks, images (columns) a second source."""
    k, n = single.shape
    of_seeds, of_images, rest = n * by_seed, k * single.mean(0).var(ddof=1), residual(single)
    total = max(of_seeds + of_images - rest, of_seeds, of_images)
    parts = of_seeds**2 / freedom + of_images**2 / (n - 1) + rest**2 / ((k - 1) * (n - 1))
    return single.mean(), (total / (k * n)) ** 0.5, total**2 / parts
