"""Attacks, corruptions and metrics made of a function are what a class would be."""

import numpy as np
import pytest
import torch
from attack_checks import Wavy, drive, passes, rand, scenario

from robustbench_kpca import corrupt, corruption, evaluate, metric, one_gradient, whole_attack
from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._core.outside import of_object
from robustbench_kpca._engine.attack_loop.engine import build_attack
from robustbench_kpca._engine.attack_loop.passes import passes_of
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.corruptions import CORRUPTIONS
from robustbench_kpca.metrics import METRICS, PLAIN
from robustbench_kpca.protocols.threat import Threat

SHAPE = (2, 6, 6)


@one_gradient(steps=7, random_start=True)
def climb(x, gradient, state):
    """Climb a quarter of the radius."""
    return x + 0.25 * state["eps"] * gradient.sign()


@one_gradient(steps=5, memory=["momentum"])
def heavy(x, gradient, state):
    length = gradient.abs().flatten(1).sum(1).view(-1, 1, 1, 1)
    state["momentum"] = 0.5 * state["momentum"] + gradient / length
    return x + 0.25 * state["eps"] * state["momentum"].sign()


@whole_attack()
def jump(model, x, y, eps, share=1.0):
    x = x.requires_grad_()
    loss = torch.nn.functional.cross_entropy(model(x), y, reduction="sum")
    return (x + share * eps * torch.autograd.grad(loss, x)[0].sign()).clamp(0, 1)


@pytest.mark.parametrize(
    ("made", "name", "options"),
    [
        (climb, "pgd", {"steps": 7, "step_size": "0.25 eps", "random_start": True}),
        (heavy, "mim", {"steps": 5, "step_size": "0.25 eps", "decay": 0.5}),
        (jump, "fgsm", {}),
    ],
)
def test_an_attack_of_a_function_is_the_attack_of_the_package(made, name, options):
    model, x, y, threat = Wavy(SHAPE), rand(7, 6, *SHAPE), torch.arange(6) % 3, Threat("linf", 0.0625)
    own = drive(ATTACKS.get(name)(**options), model, x, y, threat, None)
    assert torch.equal(drive(made(), model, x, y, threat, None)["x"], own["x"])
    assert not torch.equal(own["x"], x)


@pytest.fixture
def added(monkeypatch):
    for made in (climb, heavy, jump):
        monkeypatch.setitem(ATTACKS.added, made.__name__, made)


@pytest.mark.parametrize(("made", "cost"), [(climb, (8, 7)), (heavy, (6, 5)), (jump, (2, 1))])
def test_its_passes_are_counted_and_foreseen_where_they_can_be(added, made, cost):
    model = Wavy(SHAPE, lead=100.0, dtype=torch.float32)
    x, y = rand(3, 5, *SHAPE, dtype=torch.float32), torch.zeros(5, dtype=torch.int64)
    counts, broken = passes({"attack": made.__name__, "restarts": 1}, "linf", 0.1, model, x, y)
    assert set(counts) == {cost}
    assert not any(broken)
    assert passes_of(made(), 3) == (None if made is jump else cost)


def test_options_are_those_of_a_stage_and_the_ball_is_not_left(added):
    built = build_attack(scenario([{"attack": "climb", "restarts": 1, "steps": 3}]).stage[0])
    assert (built.steps, built.random_start) == (3, True)
    with pytest.raises(BadInputError, match="stepz"):
        build_attack(scenario([{"attack": "climb", "restarts": 1, "stepz": 3}]).stage[0])
    with pytest.raises(BadInputError, match="steps"):
        build_attack(scenario([{"attack": "climb", "restarts": 1, "steps": 0}]).stage[0])
    with pytest.raises(BadInputError, match="'abc' is not a number"):
        build_attack(scenario([{"attack": "jump", "restarts": 1, "share": "abc"}]).stage[0])
    with pytest.raises(BadInputError, match="climb' in l1"):
        climb().start(rand(1, 2, *SHAPE), torch.zeros(2).long(), Threat("l1", 1.0), torch.arange(2))
    x, y = 0.3 + 0.4 * rand(7, 6, *SHAPE), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(EvaluationError, match="'jump' returned 6 of 6 images at a distance of"):
        drive(jump(share=2.0), Wavy(SHAPE), x, y, Threat("linf", 0.1), 1)


@corruption
def grain(image, severity, rng):
    """Add noise."""
    return np.clip(image + rng.normal(0, 4 * severity, image.shape), 0, 255).astype(np.uint8)


def test_a_corruption_of_a_function(monkeypatch):
    monkeypatch.setitem(CORRUPTIONS.added, "grain", grain)
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 9, 3), dtype=np.uint8)
    weak, strong = (corrupt(images, "grain", severity, seed=1) for severity in (1, 5))
    assert np.abs(weak - images.astype(int)).mean() < np.abs(strong - images.astype(int)).mean()
    assert np.array_equal(corrupt(images[1:], "grain", 5, seed=1, ids=["1", "2"]), strong[1:])
    assert CORRUPTIONS.summary("grain") == "Add noise."


@pytest.mark.parametrize("made", [climb, jump, grain])
def test_its_code_is_that_of_the_file_of_the_function(made):
    assert of_object(made) == of_object(test_its_code_is_that_of_the_file_of_the_function)


def test_a_metric_of_a_function(metrics_of_a_test, linear):
    @metric(unit=PLAIN, kinds=["clean"])
    def surprise(outcomes):
        """The number of the class."""
        return outcomes["prediction"]

    METRICS.add(surprise)
    x = torch.linspace(0, 1, 192).view(4, 3, 4, 4)
    record = evaluate(linear(torch.ones(48), -24.0).eval(), x, [0, 0, 1, 1], protocol="clean")
    assert record.metrics["surprise"].value == record.outcomes["prediction"].mean() == 0.5
    assert METRICS.summary("surprise") == "The number of the class."
