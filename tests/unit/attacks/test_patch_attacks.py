"""Attacks on a few pixels or patches: linear models in closed form, transcriptions, and another library."""

from functools import partial
from itertools import combinations, product

import pytest
import torch
from attack_checks import batch, drive, network, passes, rand, stands

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.engine import build_attack
from robustbench_kpca.attacks.mim import MIM
from robustbench_kpca.attacks.patch import Patch
from robustbench_kpca.attacks.shared.losses import margin
from robustbench_kpca.attacks.shared.patches import allowed_corners
from robustbench_kpca.attacks.sigma_zero import SigmaZero
from robustbench_kpca.attacks.sparse_rs import _AFTER, _DIVISORS, SparseRS
from robustbench_kpca.protocols.scenario import Stage
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.verification.conformance.attack import (
    Case,
    is_independent,
    is_seeded,
    keeps_ball_and_state,
    resumes,
)

PATCH = {
    "attack": "patch", "restarts": 1, "steps": 30, "step_size": 0.1, "optimizer": "momentum", "decay": 0.9,
    "rank": "gradient", "places": 1, "random_start": True,
}  # fmt: skip
SPARSE = {"attack": "sparse_rs", "restarts": 1, "queries": 300, "alpha_init": 0.4}
ZERO = {"lr": 1.0, "sigma": 1e-3, "threshold": 0.3, "rise": 0.01}
PAIRS = {"attack": "pixel_pairs", "restarts": 1, "places": 36, "candidates": 36, "tries": 8}


class Flat(torch.nn.Module):
    def forward(self, x):
        return 0 * x.flatten(1)[:, :2] + torch.tensor([0.0, 1.0])


PLACES = Patch(**{k: v for k, v in PATCH.items() if k not in ("attack", "restarts")} | {"places": 4, "steps": 1})


def half_on_each_side(n, *shape):
    """Return a linear model's weight and bias, images, and the labels that it gives them."""
    weight, x = rand(0, *shape, dtype=torch.float32) - 0.5, rand(1, n, *shape, dtype=torch.float32)
    score = x.flatten(1) @ weight.flatten()
    bias = -float(score.median()) - 1e-3
    return weight, bias, x, (score + bias > 0).long()


def fewest(x, y, weight, bias, threat):
    """Return how far the score of the label can fall by one square at its best place, and the score."""
    towards = torch.where(y.bool(), -1.0, 1.0)[:, None, None, None] * weight
    room = torch.where(towards > 0, towards * (1 - x), -towards * x).sum(1)
    squares = allowed_corners(threat, *x.shape[2:]).nonzero().tolist()
    side = threat.side
    falls = torch.stack([room[:, r : r + side, c : c + side].sum((1, 2)) for r, c in squares], 1)
    return falls.amax(1), (x.flatten(1) @ weight.flatten() + bias).abs()


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_the_worst_of_all_places_breaks_exactly_what_one_patch_can(linear, optimizer):
    weight, bias, x, y = half_on_each_side(20, 1, 8, 8)
    fall, score = fewest(x, y, weight, bias, Threat("patches", 1, patch=2, corners="grid"))
    stage = PATCH | {"places": 16, "steps": 15, "optimizer": optimizer}
    counts, broken = passes(stage, "patches", 1, linear(weight, bias), x, y, 20, patch=2, corners="grid")
    assert broken == (fall > score).tolist()
    assert 5 < sum(broken) < 18
    assert counts[broken.index(False)] == (16 * 15 + 15 + 2, 16 * 15 + 15 + 1)


def test_runs_take_the_next_places_and_those_without_gradient_once(linear):
    weight = torch.arange(1, 17.0).view(1, 4, 4) / 100
    x, y = torch.full((1, 1, 4, 4), 0.5), torch.ones(1, dtype=torch.long)
    threat = Threat("patches", 1, patch=2, corners="grid")
    seen = []
    for steps in range(1, 8, 2):  # between two runs the last image of the first is shown
        inside = drive(PLACES, linear(weight, 0.0), x, y, threat, steps)["inside"][0, 0]
        seen.append(tuple(inside.nonzero()[0].tolist()))
    assert seen == [(2, 2), (2, 0), (0, 2), (0, 0)]
    x, y = torch.full((1, 1, 4, 4), 0.5), torch.ones(1, dtype=torch.long)
    threat = Threat("patches", 1, patch=2, corners="grid")
    model = Flat()
    seen = {tuple(drive(PLACES, model, x, y, threat, at)["inside"][0, 0].nonzero()[0].tolist()) for at in range(1, 8)}
    assert seen == {(0, 0), (0, 2), (2, 0), (2, 2)}


def test_the_last_image_of_every_run_counts(linear):
    """Two of three steps of 0.2 do not reach the boundary, and only the best place does."""
    weight = torch.zeros(1, 4, 4)
    weight[0, :2, :2] = 0.25
    weight[0, :2, 2:] = 0.01
    x, y = torch.full((1, 1, 4, 4), 0.1), torch.zeros(1, dtype=torch.long)
    stage = PATCH | {"steps": 3, "step_size": 0.2, "random_start": False}
    for places in (1, 2):
        _, broken = passes(
            stage | {"places": places}, "patches", 1, linear(weight, -0.6), x, y, 1, patch=2, corners="grid"
        )
        assert broken == [True]


@pytest.mark.parametrize("where", ["grid", "anywhere"])
def test_the_search_without_gradients_breaks_most_that_is_in_reach_and_nothing_beyond(linear, where):
    weight, bias, x, y = half_on_each_side(24, 2, 6, 6)
    threat = Threat("patches", 1, patch=2, corners=where)
    fall, score = fewest(x, y, weight, bias, threat)
    _, broken = passes(
        SPARSE | {"queries": 400}, "patches", 1, linear(weight, bias), x, y, batch_size=12, patch=2, corners=where
    )
    broken = torch.tensor(broken)
    assert not bool((broken & (fall < score)).any())
    assert float(broken[fall > 1.3 * score].double().mean()) > 0.9
    assert int((fall > 1.3 * score).sum()) > 10


def test_the_search_over_pixels_breaks_what_is_in_reach_and_nothing_beyond(linear):
    weight, bias, x, y = half_on_each_side(24, 1, 6, 6)
    towards = torch.where(y.bool(), -1.0, 1.0)[:, None, None, None] * weight
    room = torch.where(towards > 0, towards * (1 - x), -towards * x).flatten(1)
    fall = room.sort(dim=1, descending=True).values[:, :3].sum(1)
    score = (x.flatten(1) @ weight.flatten() + bias).abs()
    _, broken = passes(SPARSE | {"alpha_init": 0.8}, "l0", 3, linear(weight, bias), x, y, batch_size=12)
    broken = torch.tensor(broken)
    assert not bool((broken & (fall < score)).any())
    assert bool(broken[fall > 1.3 * score].all())


def test_the_schedule_is_that_of_the_authors():
    """The published divisors, and the queries after which they hold, of a budget of 10,000."""
    alpha = SparseRS(queries=10_000, alpha_init=0.6)._alpha(
        torch.tensor([0, 1, 50, 51, 201, 501, 1001, 2001, 4001, 6001, 8001])
    )
    assert (0.6 / alpha).round(decimals=6).tolist() == [1, 2, 2, 4, 5, 6, 8, 10, 12, 15, 20]
    assert (len(_AFTER), len(_DIVISORS)) == (9, 10)


@pytest.mark.parametrize("threat", [Threat("l0", 4), Threat("patches", 3, patch=2, corners="grid")])
def test_passes_are_as_stated(threat):
    where = {} if threat.norm == "l0" else {"patch": 2, "corners": "grid"}
    assert stands(SPARSE, threat.norm, threat.eps, **where) == (301, 0)
    assert stands(PATCH | {"steps": 4, "places": 2}, threat.norm, threat.eps, **where) == (11, 10)
    assert stands(PATCH | {"steps": 4, "places": 2, "rank": "random"}, threat.norm, threat.eps, **where) == (10, 9)


def transcribed(model, inputs, labels, steps, lr=1.0, sigma=1e-3, threshold=0.3, t=0.01):
    """Return the fewest changed values of every image: the authors' program, sigma_zero_attack.py."""
    delta = torch.zeros_like(inputs, requires_grad=True)
    best = torch.full((len(inputs),), float("inf"))
    optimizer = torch.optim.Adam([delta], lr=lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps, eta_min=lr / 10)
    tau = torch.full((len(inputs), 1, 1, 1), threshold)
    for _ in range(steps):
        logits = model(inputs + delta)
        own = logits.gather(1, labels[:, None])[:, 0]
        other = logits.scatter(1, labels[:, None], -torch.inf).amax(1)
        count = delta.detach().flatten(1).ne(0).sum(1)
        adversarial = logits.argmax(1) != labels
        best = torch.where(adversarial & (count < best), count.float(), best)
        approximation = (delta.flatten(1).square() / (delta.flatten(1).square() + sigma)).sum(1) / inputs[0].numel()
        loss = ((own - other).clamp_min(0) + approximation).sum()
        optimizer.zero_grad()
        loss.backward()
        largest = delta.grad.flatten(1).abs().amax(1).clamp_min(1e-12)
        delta.grad /= largest[:, None, None, None]
        optimizer.step()
        scheduler.step()
        delta.data.add_(inputs).clamp_(0, 1).sub_(inputs)
        tau = (tau + torch.where(adversarial, 1, -1)[:, None, None, None] * t * scheduler.get_last_lr()[0]).clamp(0, 1)
        delta.data[delta.data.abs() < tau.expand_as(delta)] = 0
    return best


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_sigma_zero_counts_as_the_authors_program(kind):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = network(kind)
    x, y = batch(model, kind, 24)
    threat = Threat("l0", 16)
    # one value a pixel, so that values and pixels are counted alike: the same three numbers are told apart by place
    flat = x.view(24, 1, 12, 4)
    wide = torch.nn.Sequential(torch.nn.Unflatten(2, (3, 4)), torch.nn.Flatten(1, 2), model)
    mine = drive(SigmaZero(steps=60, unit="value", **ZERO), wide, flat, y, Threat("l0", 48), None)
    theirs = transcribed(wide, flat, y, 60)
    assert bool(torch.isfinite(theirs).all())
    assert mine["best_distance"].tolist() == theirs.tolist()
    pixels = drive(SigmaZero(steps=60, unit="pixel", **ZERO), model, x, y, threat, None)
    values = drive(SigmaZero(steps=60, unit="value", **ZERO), model, x, y, threat, None)
    assert float(pixels["best_distance"].mean()) <= float(values["best_distance"].mean())


def test_sigma_zero_never_needs_fewer_pixels_than_there_must_be(linear):
    weight, bias, x, y = half_on_each_side(24, 1, 6, 6)
    towards = torch.where(y.bool(), -1.0, 1.0)[:, None, None, None] * weight
    room = torch.where(towards > 0, towards * (1 - x), -towards * x).flatten(1).sort(dim=1, descending=True).values
    least = (room.cumsum(1) <= (x.flatten(1) @ weight.flatten() + bias).abs()[:, None]).sum(1) + 1
    counts = drive(SigmaZero(steps=200, unit="pixel", **ZERO), linear(weight, bias), x, y, Threat("l0", 36), None)[
        "best_distance"
    ]
    assert bool((counts >= least).all())
    assert float((counts - least).mean()) < 0.5


SETS = [
    Threat("l0", 4),
    Threat("patches", 2, patch=3, corners="anywhere"),
]
ALL = [
    ("patch", PATCH | {"steps": 3, "places": 2}),
    ("patch", PATCH | {"steps": 3, "places": 2, "rank": "random", "optimizer": "adam", "random_start": False}),
    ("sparse_rs", SPARSE | {"queries": 20}),
    ("mim", {"attack": "mim", "restarts": 1, "steps": 5, "step_size": 0.2, "decay": 1.0}),
    ("pgd", {"attack": "pgd", "restarts": 1, "steps": 5, "step_size": 0.2, "random_start": True}),
    ("sigma_zero", {"attack": "sigma_zero", "restarts": 1, "steps": 20, "unit": "pixel", **ZERO}),
    ("pixel_pairs", PAIRS | {"places": 9, "candidates": 3}),
]


@pytest.mark.parametrize("threat", SETS, ids=str)
@pytest.mark.parametrize(("name", "stage"), ALL)
def test_nothing_leaves_the_set_and_rows_are_independent(name, stage, threat):
    if name in ("sigma_zero", "pixel_pairs") and threat.norm != "l0":
        pytest.skip("counts pixels")
    make = partial(build_attack, Stage.model_validate(stage))
    for promise in (keeps_ball_and_state, is_independent, resumes, is_seeded):
        promise(make, Case.usual(threat))


@pytest.mark.parametrize("threat", [Threat("linf", 0.1), Threat("l2", 1), Threat("l1", 2)])
def test_balls_are_refused(threat):
    x, y = torch.zeros(1, 3, 4, 4), torch.zeros(1, dtype=torch.long)
    for attack in (SigmaZero(steps=1, unit="pixel", **ZERO), SparseRS(queries=1, alpha_init=0.5)):
        with pytest.raises(BadInputError, match="norm = "):
            attack.start(x, y, threat, y)


@pytest.mark.parametrize(("norm", "where"), [("l0", {}), ("patches", {"patch": 2, "corners": "grid"})])
def test_gradient_attacks_take_patches_by_projection(linear, norm, where):
    """From the clean image MIM ends at the square with most of the gradient."""
    weight = torch.zeros(1, 4, 4)
    weight[0, 2:, 2:] = 1.0
    x, y = torch.full((1, 1, 4, 4), 0.5), torch.ones(1, dtype=torch.long)
    threat = Threat(norm, 1 if where else 4, **where)
    state = drive(MIM(steps=10, step_size=0.1, decay=1.0), linear(weight, 0.0), x, y, threat, 10)
    assert state["x"][0, 0].tolist() == [[0.5] * 4] * 2 + [[0.5, 0.5, 0, 0]] * 2


@pytest.mark.parametrize("candidates", [1, 12])
def test_the_two_best_pixels_of_a_linear_model_are_found(linear, candidates):
    """Its first base and that base's first partner are the two best, so one step of pairs is enough."""
    weight, bias, x, y = half_on_each_side(20, 1, 6, 6)
    towards = torch.where(y.bool(), -1.0, 1.0)[:, None] * weight.flatten()
    falls = torch.where(towards > 0, towards * (1 - x.flatten(1)), -towards * x.flatten(1)).topk(2).values.sum(1)
    _, broken = passes(PAIRS | {"candidates": candidates}, "l0", 2, linear(weight, bias), x, y)
    assert broken == (falls > (x.flatten(1) @ weight.flatten() + bias).abs()).tolist()
    assert 5 < sum(broken) < len(x)


@pytest.mark.parametrize(("kind", "pixels"), [("mlp", 1), ("mlp", 2), ("conv", 2)])
def test_no_pair_of_pixels_has_a_lower_margin_than_the_one_found(kind, pixels, fork):
    """All pairs of 16 places in 8 colours, 7,680, of which the search shows less than a tenth."""
    torch.manual_seed(0)
    model = network(kind)
    x, y = batch(model, kind, n=12)
    corners, lowest = torch.tensor([*product((0.0, 1.0), repeat=3)]), torch.full((len(x),), torch.inf)
    with torch.no_grad():
        for places in combinations(range(16), pixels):
            for colours in product(corners, repeat=pixels):
                new = x.flatten(2).clone()
                new[:, :, list(places)] = torch.stack(colours, 1)
                lowest = lowest.minimum(margin(model(new.view(x.shape)), y))
    state = drive(build_attack(Stage(**PAIRS)), model, x, y, Threat("l0", pixels), None)
    assert torch.allclose(state["lowest"], lowest, atol=1e-5)
    assert ((state["x"] != x).any(1).flatten(1).sum(1) <= pixels).all()
