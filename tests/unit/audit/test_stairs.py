"""The check `stairs` finds inputs that are rounded softly, whatever eps, and no honest network."""

import numpy as np
import pytest
import torch
from fakes import Fake
from scipy.special import expit
from small_eps_fakes import stairs as planted
from stand_ins import short_audits
from torch import nn

from robustbench_kpca import load_data, load_model
from robustbench_kpca._core.strict import parse_fraction
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.audit.context import AuditContext
from robustbench_kpca.audit.run import audit
from robustbench_kpca.audit.stairs import stairs
from robustbench_kpca.models import bundled
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.tasks import task_named

CPU, COUNT = torch.device("cpu"), 8
CLASSIFICATION, SEGMENTATION = task_named("classification"), task_named("segmentation")


@pytest.fixture(scope="module")
def digits():
    return CLASSIFICATION.compute.audited(load_data("digits"), COUNT).tensors()


def turned(model, images, labels, task=CLASSIFICATION, eps="8/255"):
    threat = Threat("linf", parse_fraction(eps))
    return stairs(AuditContext(task, model, Runner(model, COUNT, CPU), images, labels, eps, threat, 0))


@pytest.mark.parametrize(
    ("base", "levels", "steep", "eps"),
    [
        ("vit_digits", 4, 80, "8/255"),
        ("vit_digits", 16, 10, "8/255"),
        ("vit_digits", 16, 20, "1/255"),
        ("symvit_digits_adv", 8, 20, "8/255"),
        ("symvit_digits_adv", 32, 80, "8/255"),
    ],
)
def test_soft_stairs_are_flagged_at_any_eps(base, levels, steep, eps, digits):
    check = turned(Fake(load_model(base), **planted(levels, steep)), *digits, eps=eps)
    assert check.flag
    assert check.values["turned"] > 0.8 * COUNT


def test_quick_audits_and_segmenters_are_asked_for_stairs():
    with short_audits(["classification"]):
        model = Fake(load_model("vit_digits"), **planted(16, 40))
        done = audit(model, load_data("digits", limit=COUNT), eps="2/255", batch_size=COUNT, level="quick")
    assert "stairs" in {check.name for check in done.flags}
    images, labels = SEGMENTATION.compute.tensors(SEGMENTATION.compute.audited(load_data("shapes"), COUNT))
    honest = load_model("symvit_shapes")
    assert turned(honest, images, labels, SEGMENTATION).values == {"turned": 0}
    assert turned(Fake(honest, **planted(16, 40)), images, labels, SEGMENTATION).values == {"turned": COUNT}


def test_honest_networks_and_missing_gradients_are_no_stairs(digits):
    for name in (name for name in bundled() if "digits" in name):
        assert turned(load_model(name), *digits).values == {"turned": 0}, name
    # What has no slope at all is what other checks flag.
    blind = Fake(Sum(), before=lambda x: x.detach() + 0 * x)
    assert turned(blind, torch.full((COUNT, 1, 5, 5), 0.5), torch.ones(COUNT, dtype=torch.int64)).values["turned"] == 0


class Sum(nn.Module):
    """Two classes: minus and plus the sum of all pixels, which are above 0.25 on average."""

    def forward(self, x):
        total = (x - 0.25).flatten(1).sum(1)
        return torch.stack([-total, total], 1)


@pytest.mark.parametrize(("levels", "steep"), [(8, 5), (8, 9), (8, 12), (8, 16), (33, 4), (64.75, 20)])
def test_the_count_is_that_of_the_cosine_in_closed_form(levels, steep):
    """Of a sum, the gradient at each pixel is the slope of its stair; steps of 64.75 levels repeat after 4/255."""
    images = torch.rand(COUNT, 1, 5, 5, generator=torch.Generator().manual_seed(0)) * 0.6 + 0.3
    model = Fake(Sum(), **planted(levels, steep))
    place = images.double().numpy().reshape(COUNT, -1)

    def slopes(shift):
        rise = expit(steep * ((place + shift) * (levels - 1) % 1 - 0.5))
        return rise * (1 - rise)

    def cosine(a, b):
        return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)

    low, high = (cosine(slopes(0), slopes(levels / 255)) for levels in (2, 4))
    assert turned(model, images, torch.ones(COUNT, dtype=torch.int64)).values["turned"] == (
        (np.minimum(low, high) < 0.8).sum()
    )
    if levels > 64:
        assert high.min() > 0.99
