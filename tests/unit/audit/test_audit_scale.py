"""An audit does not depend on the scale of the logits, and finds soft rounding at any eps and no honest network."""

import numpy as np
import pytest
import torch
from fakes import Fake
from scipy.special import expit
from small_eps_fakes import FAKES, leaky_quantise
from small_eps_fakes import stairs as planted
from stand_ins import short_audits
from torch import nn

from robustbench_kpca import load_data, load_model
from robustbench_kpca._core.strict import parse_fraction
from robustbench_kpca._engine.inference.runner import ANY_LOGITS, Runner
from robustbench_kpca.audit.budgets import budget
from robustbench_kpca.audit.context import AuditContext, divided, gaps, scale_of
from robustbench_kpca.audit.run import audit
from robustbench_kpca.audit.stairs import stairs
from robustbench_kpca.models import bundled
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.tasks import task_named

COUNT = 8


def values(model, data, eps="2/255"):
    """The checks of a quick audit, but for those on the own logits and those that count what is rounded to the bit."""
    with short_audits(["classification"]):
        done = audit(model, data, eps=eps, batch_size=COUNT, level="quick")
    return {one.name: one.values for one in done.checks if one.name not in ("huge-eps", "neighbours")}


@pytest.mark.parametrize(
    "after",
    [
        lambda z, x: z / 128,
        lambda z, x: 2 * z,
        lambda z, x: z.log_softmax(1) / 16,
    ],
)
def test_the_scale_of_logits_changes_no_answer(after, data):
    plain = load_model("symvit_digits_adv")
    assert values(Fake(plain, after=after), data) == values(plain, data)


def test_the_scale_is_that_of_the_gaps():
    logits = torch.tensor([[0.0, 3.0, 1.0], [9.0, 5.0, -1e9], [7.0, 1.0, 0.0]])
    found = gaps(logits)
    assert found.tolist() == [2.0, 4.0, 6.0]
    assert scale_of(found) == pytest.approx(4 / 5)  # median 4; the 95th percentile, 5.8, is below 15
    assert scale_of(torch.tensor([1.0, 1.0, 1.0, 90.0])) == pytest.approx(76.65 / 15)
    assert gaps(logits + 100).tolist() == found.tolist()
    assert scale_of(3 * found) == pytest.approx(3 * scale_of(found))
    assert scale_of(torch.tensor([0.0, 0.0])) == scale_of(torch.tensor([float("nan")])) == 1
    per_pixel = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    assert gaps(per_pixel).shape == (2,)
    shown = divided(ANY_LOGITS, 2.0).show(torch.nn.Flatten(), logits[:, :, None, None])
    assert torch.equal(shown, logits / 2)


@pytest.mark.parametrize(("eps", "least"), [("2/255", 1), ("8/255", 2)])
def test_a_nearly_flat_quantiser_is_flagged_at_small_eps(eps, least, data):
    done = audit(Fake(load_model("vit_digits"), **leaky_quantise(8)), data, eps=eps, batch_size=COUNT, level="quick")
    assert len(done.flags) >= least
    assert "reach" in {one.name for one in done.flags}


UNSEEN = {"sigmoid of the logits"}  # hides nothing at 2/255
TELLING = {
    "soft quantiser, 16 levels": {"stairs"},
    "soft quantiser, 8 levels": {"stairs"},
    "gradient of other pixels": {"slope"},
    "upper rows stopped": {"slope"},
    "logits times 1e4": {"preflight"},
    "distilled: logits times 40": {"preflight"},
    "hard votes averaged": {"gradients", "slope"},
    "shattered": {"reach", "stairs"},
}
"""Fake -> checks that flag it; others are flagged by slope and reach."""


EACH = [name if name in TELLING else pytest.param(name, marks=pytest.mark.slow) for name in FAKES if name not in UNSEEN]


@pytest.mark.parametrize("name", EACH)
def test_fakes_are_flagged_at_small_eps(name, data):
    with short_audits(["classification"]):
        done = audit(FAKES[name](load_model("vit_digits")), data, eps="2/255", batch_size=COUNT, level="quick")
    assert TELLING.get(name, {"slope", "reach"}) <= {one.name for one in done.flags}


@pytest.mark.parametrize("factor", [1 / 128, 2])
def test_own_logits_of_any_scale_break_at_a_huge_eps(factor, data):
    plain = Fake(load_model("symvit_digits_adv"), after=lambda z, x: factor * z)
    done = audit(plain, data, eps="2/255", batch_size=COUNT, level="quick")
    assert next(one for one in done.checks if one.name == "huge-eps").values == {"standing": 0}


def test_the_gradient_of_a_linear_model_says_what_happens_at_any_eps(linear):
    """In closed form: the margin of a linear model changes by r g.v exactly, so `reach` counts nothing."""
    model = linear(torch.linspace(-1, 1, 3 * 32 * 32), 0.0).eval()
    images = torch.rand(COUNT, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 0.4 + 0.3
    with short_audits(["classification"]):
        done = audit(model, images, model(images).argmax(1), eps="8/255", batch_size=COUNT, level="quick")
    reach = next(one for one in done.checks if one.name == "reach")
    assert reach.values == {"unseen": 0, "overstated": 0}


@pytest.mark.parametrize("eps", ["1/255", "2/255", "8/255"])
def test_steps_of_the_black_box_are_in_units_of_eps(eps):
    _, scenario = budget(task_named("classification").compute.audit, "spsa", eps)
    options = scenario.stage[0].options
    assert options["delta"] == options["lr"] == pytest.approx(scenario.eps / 4)


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
