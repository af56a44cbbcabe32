"""How many processes load samples while the model runs, and what becomes of a run whose processes are killed."""

import multiprocessing
import time
from functools import partial

import pytest
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from robustbench_kpca._engine.inference import loader
from robustbench_kpca._engine.inference.loader import Seconds, in_batches, workers_for

PICTURES, SLOW = 64 / 366, 64 * 0.03
"""Seconds that one process takes for a batch of ImageNet, and for a batch of its corruptions."""


def batch(seconds, cores=1):
    return Seconds(seconds, seconds * cores)


@pytest.mark.parametrize(
    ("what", "images", "reading", "working", "cores", "most", "expected"),
    [
        ("clean, 2,500 a second on a GPU", 50_000, PICTURES, batch(64 / 2500), 16, 16, 9),
        ("the cores are the limit", 50_000, PICTURES, batch(64 / 20_000), 8, 8, 8),
        ("FGSM on a GPU", 50_000, PICTURES, batch(3 * 64 / 2500), 16, 16, 3),
        ("PGD-20 on a GPU", 50_000, PICTURES, batch(41 * 64 / 2500), 16, 16, 1),
        ("AutoAttack on a GPU", 50_000, PICTURES, batch(5000 * 64 / 2500), 16, 16, 0),
        ("a small set on a GPU", 1000, PICTURES, batch(64 / 2500), 16, 16, 0),
        ("corruptions on a GPU", 95 * 512, SLOW, batch(64 / 2500), 16, 16, 16),
        ("little shared memory", 50_000, PICTURES, batch(64 / 2500), 16, 1, 1),
        ("a model that fills both cores", 50_000, PICTURES, batch(3.0, 2), 2, 2, 0),
        ("a model on one of two cores", 50_000, PICTURES, batch(0.3), 2, 2, 1),
        ("one core", 50_000, PICTURES, batch(0.3), 1, 1, 0),
        ("nothing takes time", 50_000, 0.0, batch(0.0), 2, 2, 0),
    ],
)
def test_workers_are_as_many_as_the_model_needs(what, images, reading, working, cores, most, expected):
    assert workers_for(images // 64, batch(reading), working, cores, most) == expected, what


def fetch(index, *, seconds=0.0):
    time.sleep(seconds)
    return torch.full((2,), float(index))


def test_the_samples_are_the_same_when_workers_join(monkeypatch):
    """They join at the third batch, when the second one has been measured."""
    asked = []
    monkeypatch.setattr(loader, "workers_for", lambda left, *spent: asked.append(left) or 2)
    batches = list(in_batches(fetch, torch.stack, range(30, 63), batch_size=4, workers=None))
    assert torch.equal(torch.cat(batches)[:, 0], torch.arange(30.0, 63.0))
    assert asked == [7]


def test_a_worker_that_is_killed_costs_no_sample(caplog, monkeypatch):
    """Nothing is raised where the model is; this process reads what the workers leave."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))  # looks every 5 s
    seen = []
    for values in in_batches(partial(fetch, seconds=0.01), torch.stack, range(60), batch_size=4, workers=2):
        if len(seen) == 2:
            multiprocessing.active_children()[0].kill()
            time.sleep(0.1)  # the model works meanwhile
        seen.append(values[:, 0])
    assert torch.equal(torch.cat(seen), torch.arange(60.0))
    assert "is lost" in caplog.text
    assert not multiprocessing.active_children()
