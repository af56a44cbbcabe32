"""APGD: iterate for iterate the authors' program, closed forms, exact pass counts, independence of samples."""

import warnings

import pytest
import torch
from attack_checks import Unbreakable, apgd_of_the_authors, batch, double_by_default, network
from torch import nn

from robustbench_kpca import attack
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attacks._auto_steps import checkpoints
from robustbench_kpca.attacks.apgd import APGD
from robustbench_kpca.attacks.shared.draws import on_sphere
from robustbench_kpca.attacks.shared.losses import cross_entropy, dlr, dlr_targeted, objective, runners_up
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.verification.conformance.watched_query import WatchedQuery

EPS = {"linf": 8 / 255, "l2": 0.5}


def starts(x, threat, runs):
    keys = torch.arange(len(x))
    return [on_sphere(x, threat, keys, torch.full((len(x),), run)) for run in range(runs)]


def iterates_of_the_reference(model, x, y, threat, loss, steps, targets):
    """Every image that the authors' program shows the model, and the best point of every run.

    In double precision, also its tables: near a maximum single precision leaves ties, which rounding breaks.
    """
    options = {"n_iter": steps, "norm": {"linf": "Linf", "l2": "L2"}[threat.norm], "eps": threat.eps, "rho": 0.75}
    theirs, order, seen = apgd_of_the_authors(model, x, loss, **options)
    best = []
    for run, start in enumerate(starts(x, threat, targets)):
        theirs.y_target = order[:, -2 - run]
        with double_by_default(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of zero gradients
            best.append(theirs.attack_single_run(x, y, x_init=start)[0])
    return torch.stack(seen), torch.stack(best)


CASES = [
    (kind, norm, loss)
    for kind, losses in {
        "linear": ["ce", "dlr", "dlr_targeted"],
        "mlp": ["ce", "dlr", "dlr_targeted", "ce_targeted"],
        "conv": ["ce", "dlr_targeted"],
        "digits": ["dlr_targeted"],
    }.items()
    for norm in ("linf", "l2")
    for loss in losses
]


@pytest.mark.usefixtures("fork")
@pytest.mark.parametrize(("kind", "norm", "loss"), CASES)
def test_iterates_equal_the_authors(kind, norm, loss):
    """20 steps a run; APGD's own starts are given to the reference, and nothing leaves early.

    Where the label is third or lower, DLR is 1 and its gradient only rounding: its ball is too small for that.
    """
    model = network(kind, activation=nn.ReLU)
    x, y = batch(model, kind)
    model, x = model.double(), x.double()
    steps, targets = 20, 2 if loss.endswith("targeted") else 1
    eps = EPS[norm] / (8 if loss == "dlr" else 1)
    theirs, their_best = iterates_of_the_reference(model, x, y, Threat(norm, eps), loss, steps, targets)
    seen, best, losses = [], [], []
    query = WatchedQuery(model, lambda images, rows, outside: seen.append(images) if rows is None else None)
    ours, threat = APGD(steps=steps, loss=loss, targets=targets, rho=0.75), Threat(norm, eps)
    state = ours.start(x, y, threat, torch.arange(len(x)))
    while not bool(state["finished"].all()):
        state = ours.step(state, threat, query)
        best.append(state["best"])
        losses.append(state["loss"])
    assert loss != "dlr" or float(torch.stack(losses).max()) < 1 - 1e-6
    assert torch.allclose(torch.stack(seen), theirs, atol=1e-7, rtol=0)
    assert torch.allclose(torch.stack(best[steps :: steps + 1]), their_best, atol=1e-7, rtol=0)
    assert torch.equal(state["x"], state["best"])
    halved = state["step_size"] < 2 * eps
    assert bool(halved.any()), "the case must halve steps"


def test_checkpoints_and_losses_in_closed_form():
    # Croce & Hein (2020): p_0 = 0, p_1 = 0.22, p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06).
    windows = checkpoints(100)
    assert [step for step, window in enumerate(windows) if window] == [22, 41, 57, 70, 80, 87, 93, 99]
    assert [window for window in windows if window] == [22, 19, 16, 13, 10, 7, 6, 6]
    assert checkpoints(1) == [0, 1]
    assert [step for step, window in enumerate(checkpoints(10)) if window] == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    logits = torch.tensor([[4.0, 1.0, 2.0, 0.0], [1.0, 5.0, 3.0, 2.0]])
    labels, targets = torch.tensor([0, 0]), torch.tensor([2, 1])
    assert torch.allclose(dlr(logits, labels), torch.tensor([-2.0 / 3.0, 4.0 / 3.0]))
    assert torch.allclose(dlr_targeted(logits, labels, targets), torch.tensor([-2 / 3.5, 4 / 3.5]))
    for loss in (lambda z: dlr(z, labels), lambda z: dlr_targeted(z, labels, targets)):
        assert torch.allclose(loss(logits), loss(7 * logits - 3))
    assert runners_up(logits, labels, 2).tolist() == [[2, 1], [1, 2]]
    assert runners_up(logits, labels, 5).tolist() == [[2, 1, 3, 3, 3], [1, 2, 3, 3, 3]]
    assert runners_up(logits[:, :2], labels, 1).tolist() == [[1], [1]]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_starts_lie_on_the_sphere_and_differ_between_runs_and_samples(norm):
    x = torch.full((3, 1, 4, 4), 0.5)
    first, second = starts(x, Threat(norm, EPS[norm]), 2)
    order = torch.inf if norm == "linf" else 2
    assert torch.allclose((first - x).flatten(1).norm(order, dim=1), torch.tensor(EPS[norm]))
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    alone = on_sphere(x[1:2], Threat(norm, EPS[norm]), torch.tensor([1]), torch.tensor([1]))
    assert torch.equal(alone[0], second[1])


@pytest.mark.usefixtures("fork")
@pytest.mark.parametrize(
    ("classes", "loss", "same"),
    [
        (2, "dlr", "ce"),
        (2, "dlr_targeted", "ce_targeted"),
        (3, "dlr_targeted", "ce_targeted"),
        (3, "dlr", "dlr"),
        (4, "dlr_targeted", "dlr_targeted"),
    ],
)
def test_too_few_classes_for_the_ratio_leave_the_cross_entropy(classes, loss, same):
    model = network("linear", classes)
    x, y = batch(model, "linear")
    logits, target = model(x).detach(), (y + 1) % classes
    known = {
        "ce": lambda: cross_entropy(logits, y),
        "ce_targeted": lambda: -cross_entropy(logits, target),
        "dlr": lambda: dlr(logits, y),
        "dlr_targeted": lambda: dlr_targeted(logits, y, target),
    }
    assert torch.equal(objective(loss, logits, y, target), known[same]())
    targets = 9 if loss.endswith("targeted") else 1
    changes = {"loss": loss, "steps": 5, "targets": targets}
    result = attack(model, x, y, "apgd-t-linf-8_255", eps=1e-6, **changes)
    assert not bool(result.broken.any())
    assert result.backwards.tolist() == [6 * min(targets, classes - 1)] * len(x)


def test_targeted_losses():
    model = Unbreakable(4)
    x, y = batch(model, "mlp")
    threat, ours = Threat("linf", 0.2), APGD(steps=10, loss="ce_targeted", targets=1, rho=0.75)
    state = ours.start(x, y, threat, torch.arange(len(x)))
    while not bool(state["finished"].all()):
        state = ours.step(state, threat, WatchedQuery(model))
    with torch.no_grad():
        target = state["targets"][:, 0]
        assert bool((cross_entropy(model(state["x"]), target) < cross_entropy(model(x), target)).all())
    with pytest.raises(BadInputError, match="ce_targeted"):
        APGD(steps=3, loss="ce", targets=9, rho=0.75)
