"""The default batch size of an accelerator follows from the model and the memory, and stays 64 on a CPU."""

import json

import pytest
import torch
from torch import nn

from robustbench_kpca import attack, evaluate, load_data, load_model
from robustbench_kpca._engine.inference import work as room
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca._engine.inference.work import GAIN, MOST, Rates, Work, larger, work_of
from robustbench_kpca.cli.main import main
from robustbench_kpca.evaluation import evaluation
from robustbench_kpca.evaluation.command import parse

pytestmark = pytest.mark.usefixtures("few_resamples")
CPU, GPU = torch.device("cpu"), 80 * 10**9
FAST = {"protocol": "fgsm-linf-8_255", "audit": False, "quiet": True}


def test_work_is_counted_as_by_hand_and_ends_the_doubling():
    # A convolution of 3 x 3 on 8 x 8 pixels, a product of 256 x 10, and what lies between.
    with torch.random.fork_rng():
        model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)).eval()
    counted = work_of(Runner(model, 1, CPU), torch.full((1, 3, 8, 8), 0.5))
    assert counted.operations == 2 * 64 * 4 * 27 + 2 * 256 * 10
    assert counted.bytes >= 4 * (256 + 256 + 10)
    assert 3 <= counted.operators <= 6, "convolution, maximum, product, and a copy of the input; flattening is a view"
    small = Work(100, 1_000, 1_000)
    assert larger(64, small, 10**12, 10_000) == MOST
    assert larger(64, small, 2 * 256 * 1_000, 10_000) == 256, "half of the memory holds 256 rows"
    assert larger(64, small, 10**12, 300) == 512
    assert larger(8, Work(100, 10**12, 1), 10**12, 10_000) == 8, "a large model gains nothing"
    assert room.memory_of(CPU) is None


@pytest.mark.parametrize(("launches", "samples"), [(1, 5_000), (30, 5_000), (300, 100), (10_000, 64), (10_000, 5_000)])
def test_a_batch_is_doubled_while_that_saves_a_tenth(launches, samples):
    rates, counted = Rates(launch=1e-5, operations=1e9, bandwidth=1e12), Work(launches, 1_000, 10)
    size, seconds = 64, lambda rows: (launches * 1e-5 + rows * 1e-6) / rows
    while 2 * size <= MOST and size < samples and seconds(2 * size) <= (1 - GAIN) * seconds(size):
        size *= 2
    assert larger(64, counted, 80_000_000_000, samples, rates) == size


def test_only_an_accelerator_gets_another_batch(monkeypatch, tmp_path):
    """The CPU here says that it is a device of 80 GB; 130 digits fit into one batch of 256."""
    digits, model = load_data("digits").take(range(130)), load_model("vit_digits")
    assert evaluate(model, digits.take(range(70)), **FAST).spec.batch_size == 64
    monkeypatch.setattr(evaluation, "memory_of", lambda device: GPU)
    record = evaluate(model, digits, **FAST)
    assert record.spec.batch_size == 256
    assert evaluate(model, digits.take(range(64)), **FAST).spec.batch_size == 64
    images, labels = digits.tensors()
    assert int((~attack(model, images, labels, "fgsm-linf-8_255").broken).sum()) == sum(
        record.outcomes["broken_by"] == ""
    )
    assert not main(["eval", "-m", "vit_digits", "-p", "clean", "-o", str(tmp_path), "-q", "--limit", "130"])
    [path] = tmp_path.glob("*.record.json")
    assert parse(json.loads(path.read_text())["command"]).options.batch_size == 256, "the command remakes the record"


def test_verify_takes_the_options_of_a_run(tmp_path, capsys):
    asked = ["--limit", "4", "--audit", "none", "-q", "--batch-size", "4", "--device", "cpu"]
    assert not main(["eval", "-m", "rpc_symvit_digits", "-p", "clean", "-o", str(tmp_path), *asked])
    [record] = tmp_path.glob("*.record.json")
    assert main(["records", "verify", str(record), "--processes", "2", "--executor", "serial"]) == 2
    assert "2 processes with executor 'serial'" in capsys.readouterr().err
    assert main(["records", "verify", str(record), "--samples", "2", "--processes", "1"]) == 0
