"""What a board has of a training, made without a network; and trainings that are stopped and gone on with."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from stand_ins import posing_as

from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record
from robustbench_kpca.training.ledger import Options
from robustbench_kpca.training.loop import train

N = 60


def training(metric, seed, right):
    """What a board has of one training: its outcomes, and the metric in its record."""
    rng = np.random.default_rng(seed)
    columns = {"sample": np.array([f"s{i}" for i in range(N)], object), "label": np.zeros(N, np.int64)}
    columns |= {"prediction": (rng.random(N) > right).astype(np.int64), "confidence": rng.random(N)}
    outcomes = Outcomes("classification", "clean", columns)
    file = SimpleNamespace(sha256=outcomes.digest())
    metrics = {metric.name: metric.estimate(outcomes)}
    return [posing_as(Record, outcomes=outcomes, metrics=metrics, outcomes_file=file)]


def recipe_text(model, data, options="{}", **fields):
    """Return a small recipe as TOML, but for the table of its data, which comes behind."""
    usual = {
        "title": "small", "seed": 0, "epochs": 2, "batch_size": 4, "optimizer": "sgd", "lr": 0.05, "weight_decay": 0.0,
        "warmup_epochs": 0, "smoothing": 0.0, "max_shift": 0,
    }  # fmt: skip
    given = {"model": model, "data": data} | usual | fields
    return "\n".join(
        [*(f"{key} = {json.dumps(value)}" for key, value in given.items()), f"model_options = {options}\n"]
    )


class StoppedError(Exception):
    """Ends a training in its middle."""


def stop_after_an_epoch(_, epoch):
    if epoch.epoch == 0:
        raise StoppedError


def whole_and_resumed(run, folder, **options):
    """Train a recipe at once, and stopped after an epoch and gone on with; return both files, which agree."""
    whole = train(*run, folder / "whole", Options(**options))
    with pytest.raises(StoppedError):
        train(*run, folder / "parts", Options(on_epoch=stop_after_an_epoch, **options))
    resumed = train(*run, folder / "parts", Options(resume=True, **options))
    one, other = load_file(whole), load_file(resumed)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert whole.with_suffix(".csv").read_text() == resumed.with_suffix(".csv").read_text()
    return whole, resumed
