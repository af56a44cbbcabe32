"""AutoAttack is data: the stages of each version, their passes, and verdicts beside the reference's."""

import pytest
import torch
from attack_checks import Unbreakable, batch, network

from robustbench_kpca import attack, load_data, load_model
from robustbench_kpca.protocols.loading import load_scenario

PROTOCOL = "autoattack-linf-8_255"
CE, DLR, DLR_T = ({"loss": loss, "targets": n} for loss, n in (("ce", 1), ("dlr", 1), ("dlr_targeted", 9)))
APGD, FAB = {"steps": 100, "rho": 0.75}, {"steps": 100, "alpha_max": 0.1, "eta": 1.05, "beta": 0.9}
SQUARE = ("square", 1, {"queries": 5000, "p_init": 0.8})
FAB_T = ("fab", 1, FAB | {"targets": 9, "random_start": False})
STANDARD = [("apgd", 1, APGD | CE), ("apgd", 1, APGD | DLR_T), FAB_T, SQUARE]
PRESETS = {
    PROTOCOL: ("linf", 8 / 255, STANDARD),
    "autoattack-l2-128_255": ("l2", 128 / 255, STANDARD),
    "autoattack-l1-12": (
        "l1", 12,
        [("apgd_l1", 5, {"steps": 100} | CE), ("apgd_l1", 1, {"steps": 100} | DLR_T | {"targets": 5}), FAB_T, SQUARE],
    ),
    "autoattack-plus-linf-8_255": (
        "linf", 8 / 255,
        [
            ("apgd", 5, APGD | CE), ("apgd", 5, APGD | DLR),
            ("fab", 1, FAB | {"targets": 0, "random_start": False}),
            ("fab", 4, FAB | {"targets": 0, "random_start": True}),
            SQUARE, ("apgd", 1, APGD | DLR_T), FAB_T,
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_the_preset_is_the_published_ensemble(name):
    _, scenario = load_scenario(name)
    norm, eps, stages = PRESETS[name]
    assert (scenario.norm, scenario.eps, scenario.draws, scenario.clip) == (norm, eps, 1, True)
    assert [(stage.attack, stage.restarts, stage.options) for stage in scenario.stage] == stages


@pytest.mark.parametrize(("name", "norm"), [(PROTOCOL, "Linf"), ("autoattack-l1-12", "L1"), ("plus", "Linf")])
def test_its_numbers_are_those_of_the_reference(name, norm):
    reference = pytest.importorskip("pyautoattack")
    version = "plus" if name == "plus" else "standard"
    theirs = reference.AutoAttack(torch.nn.Identity(), norm=norm, eps=0.1, version=version)
    stages = PRESETS["autoattack-plus-linf-8_255" if name == "plus" else name][2]
    names = {
        "standard": ["apgd-ce", "apgd-t", "fab-t", "square"],
        "plus": ["apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"],
    }
    assert theirs.attacks_to_run == names[version]
    apgd, apgd_t = stages[0], next(stage for stage in stages if stage[2].get("loss") == "dlr_targeted")
    assert (theirs.apgd.n_restarts, theirs.apgd.n_iter, theirs.apgd.use_largereps) == (apgd[1], 100, norm == "L1")
    assert (theirs.apgd_targeted.n_restarts, theirs.apgd_targeted.n_target_classes) == (1, apgd_t[2]["targets"])
    assert theirs.apgd.thr_decr == theirs.apgd_targeted.thr_decr == apgd[2].get("rho", 0.75)
    fab = [stage for stage in stages if stage[0] == "fab"]
    assert theirs.fab.n_restarts == sum(stage[1] for stage in fab if stage[2]["targets"] == 0 or version == "standard")
    assert theirs.fab.n_target_classes == fab[-1][2]["targets"]
    for name in ("alpha_max", "eta", "beta"):
        assert getattr(theirs.fab, name) == FAB[name]
    square = theirs.square
    assert (square.n_queries, square.n_restarts, square.p_init, square.rescale_schedule) == (5000, 1, 0.8, False)


def cost(name, classes=10, steps=100, queries=5000):
    forwards = backwards = 0
    for member, restarts, options in PRESETS[name][2]:
        targets = options.get("targets")
        targeted = options.get("loss", "").endswith("_targeted") or (member == "fab" and targets > 0)
        runs = min(targets, classes - 1) if targeted else 1
        if member == "square":
            gradients, others = 0, queries + 1  # the initial pattern
        elif member == "fab":
            gradients, others = runs * steps * (1 if targeted else classes - 1), runs * steps + 2
        else:
            gradients, others = runs * (steps + (3 if member == "apgd_l1" else 1)), 1 + targeted
        forwards, backwards = forwards + restarts * (gradients + others), backwards + restarts * gradients
    return forwards, backwards


def test_the_cost_of_the_published_ensembles_and_of_a_model_that_falls():
    assert cost(PROTOCOL) == cost("autoattack-l2-128_255") == (7816, 1910)
    assert cost("autoattack-l1-12") == (5 * 104 + 5 * 103 + 2 + 1802 + 5001, 5 * 103 + 5 * 103 + 900)
    assert cost("autoattack-plus-linf-8_255") == (10 * 102 + 5 * 1002 + 5001 + 911 + 1802, 1010 + 5 * 900 + 909 + 900)
    # Where APGD-CE breaks every sample, later stages see nobody.
    images, labels = load_data("digits", limit=32).tensors()
    result = attack(load_model("fan_digits"), images, labels, PROTOCOL)
    assert bool(result.broken.all())
    assert int(result.backwards.max()) <= 101


def stands(name, classes=10, **changes):
    images = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    labels, eps = torch.zeros(2, dtype=torch.int64), {"eps": 0.5} if "l1" in name else {}
    result = attack(Unbreakable(classes).eval(), images, labels, name, batch_size=2, **changes, **eps)
    assert not bool(result.broken.any())
    found = set(zip(result.forwards.tolist(), result.backwards.tolist(), strict=True))
    return found.pop() if len(found) == 1 else found


def test_rand_is_two_attacks_under_expectation_over_twenty_draws():
    reference = pytest.importorskip("pyautoattack")
    theirs = reference.AutoAttack(torch.nn.Identity(), norm="Linf", eps=0.1, version="rand")
    assert theirs.attacks_to_run == ["apgd-ce", "apgd-dlr"]
    assert theirs.apgd.eot_iter == 20
    scenario = load_scenario("autoattack-rand-linf-8_255")[1]
    assert scenario.draws == 20
    assert [stage.options["loss"] for stage in scenario.stage] == ["ce", "dlr"]
    assert {stage.options["steps"] for stage in scenario.stage} == {theirs.apgd.n_iter}
    assert {stage.restarts for stage in scenario.stage} == {theirs.apgd.n_restarts}
    assert stands("autoattack-rand-linf-8_255", steps=5) == (20 * 14, 20 * 12)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("classes", [2, 4])
def test_any_number_of_classes_will_do(name, classes):
    """Targets are the K - 1 wrong classes; where a ratio has too few, APGD raises the cross-entropy."""
    assert stands(name, classes, steps=5, queries=3) == cost(name, classes, 5, 3)


@pytest.mark.usefixtures("fork")
@pytest.mark.parametrize("name", PRESETS)
def test_models_of_few_classes_fall_as_they_should(name):
    """Every image is within reach."""
    model = network("linear", 3)
    images, labels = batch(model, "linear", 8)
    eps = {"linf": 0.3, "l2": 2.0, "l1": 10.0}[PRESETS[name][0]]
    assert bool(attack(model, images, labels, name, eps=eps, steps=20, queries=50).broken.all())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "eps"), [(PROTOCOL, 4 / 255), ("autoattack-l2-128_255", 0.7), ("autoattack-l1-12", 4.0)]
)
def test_the_reference_agrees(name, eps, fork):
    pyautoattack = pytest.importorskip("pyautoattack")
    images, labels = load_data("digits", limit=8).tensors()
    model, norm = load_model("vit_digits"), {"linf": "Linf", "l2": "L2", "l1": "L1"}[PRESETS[name][0]]
    ours = attack(model, images, labels, name, eps=eps, steps=10, queries=50)
    reference = pyautoattack.AutoAttack(model, norm=norm, eps=eps, version="standard", seed=0)
    reference.fab.n_iter, reference.square.n_queries = 10, 50
    for apgd in (reference.apgd, reference.apgd_targeted):
        apgd.n_iter = apgd.n_iter_orig = 10
    found = reference.run_standard_evaluation(images, labels, batch_size=64)[0]
    with torch.no_grad():
        robust = model(found).argmax(1) == labels
    assert 0 < int(robust.sum()) < 8
    assert int((~ours.broken).sum()) <= int(robust.sum()) + 1
    assert int((ours.broken == robust).sum()) <= 2
