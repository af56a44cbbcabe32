"""FAB: iterate for iterate the authors' program, true minimal distances, exact projections and pass counts."""

import pytest
import torch
from attack_checks import Unbreakable, batch, double_by_default, network
from scipy.optimize import linprog, minimize
from torch import nn

from robustbench_kpca import attack
from robustbench_kpca.attacks._hyperplane import to_hyperplane
from robustbench_kpca.attacks.fab import FAB
from robustbench_kpca.attacks.shared.draws import on_sphere
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.verification.conformance.watched_query import WatchedQuery

EPS = {"linf": 8 / 255, "l2": 0.5, "l1": 2.0}
ORDER, DUAL = {"linf": torch.inf, "l2": 2, "l1": 1}, {"linf": 1, "l2": 2, "l1": torch.inf}
NAMES = {"linf": "Linf", "l2": "L2", "l1": "L1"}
NORMS = ["linf", "l2", "l1"]
CONSTANTS = {"alpha_max": 0.1, "eta": 1.05, "beta": 0.9}
USUAL = CONSTANTS | {"random_start": False}


def search(model, x, y, norm, steps, targets, look=lambda images, rows, outside: None, random_start=False):
    """Run FAB to its end by hand, from the true labels, with nothing leaving early."""
    fab = FAB(steps=steps, targets=targets, **CONSTANTS, random_start=random_start)
    threat = Threat(norm, EPS[norm])
    state = fab.start(x, y, threat, torch.arange(len(x)))
    while not bool(state["finished"].all()):
        state = fab.step(state, threat, WatchedQuery(model, look))
    return state


def unboxed_direction(x, norm, run):
    """Where our random start of a run goes, before the box, as the draw that leads the authors' program there."""
    threat = Threat(norm, EPS[norm] / 2, clip=False)
    away = on_sphere(x.double(), threat, torch.arange(len(x)), torch.full((len(x),), run)) - x
    away = away / away.flatten(1).norm(ORDER[norm], dim=1).view(-1, 1, 1, 1)
    return (away + 1) / 2 if norm == "linf" else away


@pytest.mark.usefixtures("fork")
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("random_start", [False, True])
@pytest.mark.parametrize(
    ("kind", "targets"),
    [
        *((kind, targets) for kind in ("linear", "mlp", "conv") for targets in (0, 2)),
        pytest.param("digits", 2, marks=pytest.mark.slow),
    ],
)
def test_iterates_equal_the_authors(kind, norm, targets, random_start, monkeypatch):
    """In double precision, also its tables and conversions: rounding a sum over the pixels would drift.

    Models are smooth: where one is linear, x' lies exactly on the boundary if x is misclassified, and ties decide.

    (alpha = |d(x)| / (|d(x)| + |d(c)|) lets the overshoots from both sides cancel.)
    """
    pytest.importorskip("pyautoattack")
    from pyautoattack.fab_pt import FABAttack_PT

    model = network(kind)
    x, y = batch(model, kind)
    model, x = model.double(), x.double()
    steps, runs, shown = 20, max(targets, 1), []

    def watched(images):
        shown.append(images.detach().clone())
        return model(images)

    options = {"norm": NAMES[norm], "n_iter": steps, "eps": EPS[norm]}
    theirs = FABAttack_PT(watched, targeted=targets > 0, **options, **CONSTANTS)
    their_points, their_best = [], []
    for run in range(runs):
        shown.clear()
        theirs.target_class = run + 2
        with monkeypatch.context() as patch, double_by_default():
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
            for draw in ("rand", "randn"):
                patch.setattr(torch, draw, lambda shape, run=run: unboxed_direction(x, norm, run))
            their_best.append(theirs.attack_single_run(x, y, use_rand_start=random_start, is_targeted=targets > 0))
        their_points += shown[2 if targets else 1 :]
    seen = []
    look = lambda images, rows, outside: seen.append((images, outside))  # noqa: E731
    state = search(model, x, y, norm, steps, targets, look, random_start)
    ours = [images for images, outside in seen if outside]
    if not targets:  # K - 1 gradients at the same point
        classes = len(model(x[:1])[0])
        points = [ours[i] for i in range(len(ours)) if i % classes in (0, classes - 1)]
        assert all(torch.equal(ours[i], ours[i - i % classes]) for i in range(len(ours)) if i % classes != classes - 1)
    else:
        points = ours
    assert torch.allclose(torch.stack(points), torch.stack(their_points), atol=1e-7, rtol=0)
    moved = torch.stack([(best - x).flatten(1).norm(ORDER[norm], dim=1) for best in their_best])
    moved[moved == 0] = torch.inf  # none found
    assert torch.allclose(state["best_distance"], moved.amin(0), atol=1e-6, rtol=0)
    nearest = torch.stack(their_best)[moved.argmin(0), torch.arange(len(x))]
    assert torch.allclose(state["best"], nearest, atol=1e-7, rtol=0)
    assert bool(torch.isfinite(moved.amin(0)).any())


@pytest.mark.usefixtures("fork")
@pytest.mark.parametrize("norm", NORMS)
def test_the_proposal_is_the_best_image_if_it_lies_in_the_ball(norm):
    model = network("mlp", 3)
    x, y = batch(model, "mlp", 20)
    seen = []
    state = search(model, x, y, norm, 10, 2, lambda images, *_: seen.append(images))
    assert min(float(images.min()) for images in seen) >= 0
    assert max(float(images.max()) for images in seen) <= 1
    inside = state["best_distance"] <= EPS[norm]
    assert 0 < int(inside.sum()) < 20
    assert torch.equal(state["x"][inside], state["best"][inside])
    assert torch.equal(state["x"][~inside], x[~inside])
    result = attack(model, x, y, "fab-t-linf-8_255", norm=norm, eps=EPS[norm], steps=10)
    assert torch.equal(result.broken, inside)


def solved(x, normal, value, norm):
    x, normal, d = x.flatten().numpy(), normal.flatten().numpy(), x.numel()
    box = [(-float(pixel), 1 - float(pixel)) for pixel in x]
    if norm == "linf":
        rows = [[*(sign * float(i == j) for j in range(d)), -1.0] for i in range(d) for sign in (1, -1)]
        cost, plane = [0.0] * d + [1.0], [[*normal, 0.0]]
        done = linprog(cost, A_ub=rows, b_ub=[0.0] * 2 * d, A_eq=plane, b_eq=[-value], bounds=[*box, (0, None)])
        return done.fun if done.success else None
    if norm == "l1":
        parts = [(0, upper) for _, upper in box] + [(0, -lower) for lower, _ in box]
        done = linprog([1.0] * 2 * d, A_eq=[[*normal, *-normal]], b_eq=[-value], bounds=parts)
        return done.fun if done.success else None
    plane = {"type": "eq", "fun": lambda way: normal @ way + value, "jac": lambda way: normal}
    options = {"ftol": 1e-14, "maxiter": 500}
    done = minimize(
        lambda way: way @ way, 0 * x, jac=lambda way: 2 * way, bounds=box, constraints=[plane], options=options
    )
    return done.fun**0.5 if done.success else None


@pytest.mark.parametrize("norm", NORMS)
def test_the_projection_is_scipys(norm):
    generator = torch.Generator().manual_seed(11)
    count, shape = 40, (1, 2, 4)
    x = torch.rand(count, *shape, generator=generator, dtype=torch.float64)
    x[::3] = x[::3].round()
    normal = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    normal[::4, :, 0, :2] = 0
    flat = normal.flatten(1)
    room = torch.where(flat > 0, x.flatten(1), 1 - x.flatten(1)) * flat.abs()
    other = flat.abs().sum(1) - room.sum(1)
    share = 0.95 * torch.rand(count, generator=generator, dtype=torch.float64)
    up = torch.arange(count) % 2 == 0
    value = torch.where(up, share * room.sum(1), -share * other)
    way = to_hyperplane(x, normal, value, norm)
    assert torch.allclose(value + (normal * way).flatten(1).sum(1), torch.zeros(count).double(), atol=1e-12)
    assert float((x + way).min()) >= -1e-15
    assert float((x + way).max()) <= 1 + 1e-15
    assert torch.equal(way[normal == 0], torch.zeros(int((normal == 0).sum())).double())
    for i in range(count):
        least = solved(x[i], normal[i], float(value[i]), norm)
        assert least is not None
        assert float(way[i].flatten().norm(ORDER[norm])) == pytest.approx(least, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("norm", NORMS)
def test_the_projection_at_its_edges(norm):
    x = torch.rand(5, 1, 3, 3, generator=torch.Generator().manual_seed(12))
    normal = torch.randn(5, 1, 3, 3, generator=torch.Generator().manual_seed(13))
    normal[2], normal[3] = 0, 1e-30 * normal[3]
    value = torch.tensor([1e3, -1e3, 0.5, 1e-30, 0.0])
    way = to_hyperplane(x, normal, value, norm)
    assert bool(torch.isfinite(way).all())
    assert torch.allclose((x + way)[0], (normal[0] < 0).float(), atol=1e-7), "out of reach: the nearest corner"
    assert torch.allclose((x + way)[1], (normal[1] > 0).float(), atol=1e-7)
    assert torch.equal(way[2], torch.zeros(1, 3, 3)), "no hyperplane"
    assert float(way[3].abs().max()) > 0.01, "scales do not matter"
    assert torch.equal(way[4], torch.zeros(1, 3, 3)), "already there"
    assert way.dtype == x.dtype


@pytest.mark.parametrize("norm", NORMS)
def test_random_starts_lie_half_way_to_the_sphere_and_differ_between_runs_and_samples(norm):
    x, y, threat = torch.full((3, 3, 4, 4), 0.5), torch.zeros(3, dtype=torch.int64), Threat(norm, 0.4)
    fab, query = FAB(steps=1, targets=2, **CONSTANTS, random_start=True), WatchedQuery(Unbreakable(3))
    state = fab.start(x, y, threat, torch.arange(3))
    second = fab.step(state, threat, query)["point"]
    for point in (state["point"], second):
        assert torch.allclose((point - x).flatten(1).norm(ORDER[norm], dim=1), torch.tensor(0.2), atol=1e-5)
        assert not torch.allclose(point[0], point[1])
    assert not torch.allclose(state["point"], second)
    assert torch.equal(fab.start(x[1:], y[1:], threat, torch.arange(1, 3))["point"], state["point"][1:])
    plain = FAB(steps=1, targets=2, **USUAL).start(x, y, threat, torch.arange(3))
    assert torch.equal(plain["point"], x)


def test_nan_far_outside_the_ball_neither_counts_nor_stops_the_search(linear):
    """The model answers NaN beyond a distance from the clean images; the search turns back and finds what is inside."""

    class Brittle(nn.Module):
        def __init__(self, inner, limit):
            super().__init__()
            self.inner, self.limit = inner, limit

        def forward(self, x):
            far = (x - 0.5).flatten(1).abs().amax(1) > self.limit
            return self.inner(x) + torch.where(far, torch.nan, 0.0)[:, None]

    weight = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for reach, limit, broken in ((0.02, 0.0205, True), (0.05, 0.04, False)):
        score = reach * float(weight.abs().sum())
        inner = linear(weight, score - 0.5 * float(weight.sum())).double()
        x, y = torch.full((1, 3, 4, 4), 0.5, dtype=torch.float64), torch.ones(1, dtype=torch.int64)
        result = attack(Brittle(inner, limit).eval(), x, y, "fab-t-linf-8_255", steps=30)
        assert result.broken.tolist() == [broken]
