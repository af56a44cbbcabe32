"""Outcomes of an attacked block: how probable its words are, read as they are and with the worst replaced words."""

import torch

from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca.attacks.shared.words import changed
from robustbench_kpca.records.table import COUNTS
from robustbench_kpca.tasks.compute import Row
from robustbench_kpca.types import IGNORE


def rows_of(sample: Sample, article: int) -> list[Row]:
    """Return the one row of a block of an article; where nothing worse was found it is as clean, without swaps."""
    assert isinstance(sample.label, torch.Tensor)
    assert sample.given is not None
    row = {
        "sample": sample.id,
        "article": article,
        "words": int((sample.label != IGNORE).sum()),
        "read": sample.clean.numel(),
        "clean_nll": -sample.given[1],
        "nll": -sample.worst_margin,
        "swaps": int(changed(sample.worst, sample.clean).sum()),
        "attack": sample.worst_by,
    }
    return [row | {name: getattr(sample, name) for name in COUNTS}]


def worse_of(rows: list[Row], before: list[Row]) -> list[Row]:
    """Return the row of higher loss, at this rate or at the smaller one, with the passes of both."""
    (mine,), (theirs,) = rows, before
    worse = mine if mine["nll"] > theirs["nll"] else theirs
    return [worse | {name: mine[name] + theirs[name] for name in COUNTS}]
