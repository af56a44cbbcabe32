"""APGD for L1: iterate for iterate the authors' program, an exact projection, closed forms, pass counts."""

import warnings
from contextlib import contextmanager

import pytest
import torch
from attack_checks import apgd_of_the_authors, batch, double_by_default, network, rand

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attacks._l1 import nearest_in_l1
from robustbench_kpca.attacks.apgd_l1 import APGDL1
from robustbench_kpca.attacks.shared.ball import distance, project
from robustbench_kpca.attacks.shared.draws import noise
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.verification.conformance.watched_query import WatchedQuery

LOSSES = ("ce", "dlr", "dlr_targeted", "ce_targeted")


@contextmanager
def in_double(monkeypatch):
    """Run the authors' program in double precision, also its tables and conversions.

    It takes `x + y - y` for x: a pixel that went back to the clean image counts as moved if rounding says so. Here, as
    in our program, it does not.
    """
    from pyautoattack import autopgd_base

    with monkeypatch.context() as patch, double_by_default():
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        patch.setattr(autopgd_base, "L0_norm", lambda delta: (delta.abs() > 1e-9).flatten(1).sum(1))
        yield patch


def iterates_of_the_reference(model, x, y, eps, loss, steps, targets, monkeypatch):
    """Every image that the authors' program shows the model, and the best point of every run."""
    theirs, order, seen = apgd_of_the_authors(model, x, loss, n_iter=steps, norm="L1", eps=eps, use_largereps=True)
    best, keys = [], torch.arange(len(x))
    early = -(-3 * steps // 10)
    for run in range(targets):
        theirs.y_target = order[:, -2 - run]
        with in_double(monkeypatch) as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of zero gradients
            patch.setattr(torch, "randn_like", lambda like, run=run: noise(keys, torch.full_like(keys, run), like))
            phases = [early, early, steps - 2 * early]
            best.append(theirs.decr_eps_pgd(x, y, [3.0 * eps, 2.0 * eps, eps], phases)[0])
    return torch.stack(seen), torch.stack(best)


@pytest.mark.usefixtures("fork")
@pytest.mark.parametrize(
    ("kind", "loss", "steps"),
    [
        *((kind, loss, 20) for kind in ("linear", "mlp", "conv") for loss in LOSSES),
        *(("digits", loss, 20) for loss in ("ce", "dlr_targeted")),
        *((kind, loss, 100) for kind in ("mlp", "conv") for loss in ("ce", "dlr_targeted")),
        ("mlp", "ce", 400),
    ],
)
def test_iterates_equal_the_authors(kind, loss, steps, monkeypatch):
    model = network(kind)
    x, y = batch(model, kind)
    model, x = model.double(), x.double()
    eps, targets = 2.0 if kind == "digits" else 0.5, 2 if loss.endswith("targeted") else 1
    theirs, their_best = iterates_of_the_reference(model, x, y, eps, loss, steps, targets, monkeypatch)
    seen, best = [], []
    query = WatchedQuery(model, lambda images, rows, outside: seen.append((images, outside)) if rows is None else None)
    ours, threat = APGDL1(steps=steps, loss=loss, targets=targets), Threat("l1", eps)
    state = ours.start(x, y, threat, torch.arange(len(x)))
    while not bool(state["finished"].all()):
        state = ours.step(state, threat, query)
        best.append(state["best"])
    assert all(outside for _, outside in seen)
    gap = (torch.stack([images for images, _ in seen]) - theirs).abs().flatten(1).amax(1)
    assert float(gap.max()) < 1e-7
    assert torch.allclose(torch.stack(best[steps + 2 :: steps + 3]), their_best, atol=1e-7, rtol=0)
    assert torch.equal(state["x"], state["best"])
    assert bool((distance(state["x"], x, "l1") <= eps).all())


def by_bisection(x, centre, radius, clip):
    delta = (x - centre).flatten(1)
    room = torch.where(delta > 0, 1 - centre.flatten(1), centre.flatten(1)) if clip else torch.inf * delta.abs() + 1
    room = torch.nan_to_num(room, nan=1.0, posinf=1e300)
    low, high = torch.zeros(len(x), 1).double(), delta.abs().amax(1, keepdim=True)
    moved = lambda t: torch.minimum((delta.abs() - t).clamp_min(0), room)  # noqa: E731
    for _ in range(200):
        middle = (low + high) / 2
        far = moved(middle).sum(1, keepdim=True) > radius[:, None]
        low, high = torch.where(far, middle, low), torch.where(far, high, middle)
    high = torch.where(moved(0 * low).sum(1, keepdim=True) <= radius[:, None], 0, high)
    return centre + (delta.sign() * moved(high)).view(x.shape)


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("scale", [0.01, 0.3, 3.0, 100.0])
def test_the_projection_is_the_nearest_point_of_ball_and_box(scale, clip):
    centre = rand(0, 50, 2, 4, 5)
    centre[::3] = centre[::3].round()
    x = centre + scale * (rand(1, *centre.shape) - 0.5)
    x[::5] = x[::5].round(decimals=1)  # ties
    x[7] = centre[7]
    radius = torch.linspace(0.01, 30, 50).double()
    ours = nearest_in_l1(x, centre, radius, clip=clip)
    assert torch.allclose(ours, by_bisection(x, centre, radius, clip), atol=1e-9, rtol=0)
    assert bool((distance(ours, centre, "l1") <= radius).all())
    if clip:
        assert 0 <= float(ours.min()) <= float(ours.max()) <= 1
    inside = distance(x, centre, "l1") <= radius
    if not clip:
        assert torch.allclose(ours[inside], x[inside], atol=1e-12)
        theirs = torch.cat(
            [project(x[i : i + 1], centre[i : i + 1], Threat("l1", float(radius[i]), clip=False)) for i in range(50)]
        )
        assert torch.allclose(ours, theirs, atol=1e-9)


def test_the_projection_is_the_authors_and_never_leaves_ball_or_box(monkeypatch):
    reference = pytest.importorskip("pyautoattack.autopgd_base")
    centre, eps = rand(2, 40, 3, 6, 6), 4.0
    x = centre + torch.linspace(0.01, 3, 40).view(-1, 1, 1, 1) * (rand(3, *centre.shape) - 0.5)
    with in_double(monkeypatch):
        theirs = x + reference.L1_projection(centre, x - centre, eps)
    ours = nearest_in_l1(x, centre, torch.full((40,), eps).double(), clip=True)
    assert torch.allclose(ours, theirs, atol=1e-10, rtol=0)
    centre = (rand(4, 6, 3, 64, 64) * 255).round().float() / 255
    for scale, eps in ((1.0, 12.0), (3.0, 1.0), (0.2, 1000.0)):
        x = centre + scale * (rand(5, *centre.shape).float() - 0.5)
        moved = nearest_in_l1(x, centre, torch.full((6,), eps), clip=True)
        assert moved.dtype == torch.float32
        assert bool((distance(moved, centre, "l1") <= eps).all())
        assert 0 <= float(moved.min()) <= float(moved.max()) <= 1


def test_runs_begin_apart():
    x, y = torch.full((3, 1, 8, 8), 0.5), torch.zeros(3, dtype=torch.int64)
    attack = APGDL1(steps=5, loss="ce", targets=1)
    point = attack.start(x, y, Threat("l1", 1.0), torch.arange(3))["point"]
    assert torch.allclose(distance(point, x, "l1"), torch.full((3,), 3.0).double(), atol=1e-5)
    assert not torch.equal(point[0], point[1])
    assert torch.equal(attack.start(x[1:], y[1:], Threat("l1", 1.0), torch.arange(1, 3))["point"], point[1:])


def test_other_norms_and_senseless_options_are_refused():
    x, y, keys = rand(0, 1, 1, 2, 2), torch.tensor([0]), torch.tensor([0])
    for norm in ("linf", "l2"):
        with pytest.raises(BadInputError, match=f"'apgd_l1' .*{norm}"):
            APGDL1(steps=5, loss="ce", targets=1).start(x, y, Threat(norm, 0.1), keys)
    with pytest.raises(BadInputError, match="ce_targeted"):
        APGDL1(steps=5, loss="ce", targets=9)
    with pytest.raises(ValueError, match="greater than or equal to 5"):
        APGDL1(steps=4, loss="ce", targets=1)
