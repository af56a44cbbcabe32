"""An audit's answers do not depend on the scale of the logits, and it is sharp at small eps."""

import pytest
import torch
from fakes import Fake
from small_eps_fakes import FAKES, leaky_quantise
from stand_ins import short_audits

from robustbench_kpca import load_data, load_model
from robustbench_kpca._engine.inference.runner import ANY_LOGITS
from robustbench_kpca.audit.budgets import budget
from robustbench_kpca.audit.context import divided, gaps, scale_of
from robustbench_kpca.audit.run import audit
from robustbench_kpca.tasks import task_named

COUNT = 8


@pytest.fixture(scope="module")
def data():
    return load_data("digits", limit=COUNT)


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
