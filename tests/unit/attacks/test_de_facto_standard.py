"""Where the reference AutoAttack fails without a word, this one works, says so in a line, or is indifferent.

Behaviours of pyautoattack 0.2, as probed: NaN logits counted as class 0, or as robust by FAB; IndexError for fewer
than 10 classes; RuntimeError for int32 labels and float64 images; images outside [0, 1] clamped; the global generator
seeded anew; windows, signs and starts shared by the batch, so that verdicts depend on its size and order.
"""

import pytest
import torch
from attack_checks import batch, network
from torch import nn

from robustbench_kpca import attack, evaluate
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.given import as_dataset

SHORT = {"steps": 5, "queries": 10}
PROTOCOLS = ["autoattack-linf-8_255", "autoattack-plus-linf-8_255", "autoattack-l2-128_255", "autoattack-l1-12"]
STAGES = ["apgd-ce-linf-8_255", "apgd-t-linf-8_255", "fab-t-linf-8_255", "square-linf-8_255"]
EPS = {name: 0.5 if "l2" in name else 1.0 if "l1" in name else 8 / 255 for name in PROTOCOLS}


@pytest.fixture
def case(fork):
    model = network("conv", 5)
    return model, *batch(model, "conv", 9)


class NaNOffTheGrid(nn.Module):
    """Class `label` on grey images of 256 levels, NaN on all that lie between levels."""

    def __init__(self, label):
        super().__init__()
        self.score = nn.Parameter(3.0 * nn.functional.one_hot(torch.tensor(label), 5))

    def forward(self, x):
        levels = 255 * x.flatten(1)
        off = ((levels - levels.round()).abs() > 1e-3).any(1)
        logits = self.score + 5 * (x.flatten(1)[:, :5] - 0.5)
        return torch.where(off[:, None], torch.nan, logits)


@pytest.mark.parametrize("protocol", STAGES)
def test_nan_on_every_perturbed_image_is_broken_and_flagged(protocol):
    label = 0  # what argmax answers to NaN
    grey = 0.3 + 0.4 * torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    images = (255 * grey).round() / 255
    labels = torch.full((4,), label)
    steps = 40 if "fab" in protocol else 5  # FAB comes back into the ball from far outside
    changes = {"queries": 10} if "square" in protocol else {"steps": steps}
    record = evaluate(
        NaNOffTheGrid(label).eval(), images, labels, protocol=protocol, **changes, eps="8.3/255", audit=False
    )
    assert record.metrics["clean_accuracy"].value == 1
    assert record.metrics["robust_accuracy"].value == 0
    assert record.outcomes["prediction"].tolist() == [-1] * 4
    assert any("4 samples met NaN or infinite logits" in flag for flag in record.flags)


def test_integer_labels_of_any_width_and_double_precision_work(case):
    model, images, labels = case
    found = [
        evaluate(model, images, labels.to(dtype), protocol=PROTOCOLS[0], **SHORT, audit=False)
        .outcomes.columns["linf"]
        .tolist()
        for dtype in (torch.int64, torch.int32, torch.uint8)
    ]
    assert found[0] == found[1] == found[2]
    with pytest.raises(BadInputError, match="integer"):
        evaluate(model, images, labels.float(), protocol=PROTOCOLS[0], **SHORT, audit=False)
    model, images, labels = case
    with pytest.raises(BadInputError, match=r"float64"):
        attack(model, images.double(), labels, PROTOCOLS[0], **SHORT)
    assert attack(model.double(), images.double(), labels, PROTOCOLS[0], **SHORT).images.dtype == torch.float64


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_verdicts_know_nothing_of_batch_mates_and_order(case, protocol):
    """A record names samples: the same ones, in another order and company, have the same verdict and the same cost."""
    model, images, labels = case
    options = {"protocol": protocol, "eps": EPS[protocol] * 0.6, "batch_size": 4, **SHORT}
    samples, columns = as_dataset(images, labels), ("sample", "broken_by", "prediction", "linf", "forwards")
    whole, part = (
        evaluate(model, chosen, **options, audit=False).outcomes.columns
        for chosen in (samples, samples.take([7, 2, 5, 0, 8]))
    )
    rows = [set(zip(*(found[name].tolist() for name in columns), strict=True)) for found in (whole, part)]
    assert len(rows[1]) == 5
    assert rows[1] < rows[0]
    assert 0 < sum(by != "" for by in whole["broken_by"]) < 9
