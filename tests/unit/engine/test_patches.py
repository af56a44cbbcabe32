"""Sets of a few pixels or patches: what lies in them, the projection onto them, and which protocols mean something."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from robustbench_kpca import load_model
from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._engine.attack_loop.checks import Checks
from robustbench_kpca._engine.attack_loop.sets import set_of
from robustbench_kpca._engine.attack_loop.threat import check_budget, token_side
from robustbench_kpca.attacks.shared.ball import project, uniform_in_ball
from robustbench_kpca.attacks.shared.patches import allowed_corners
from robustbench_kpca.protocols.threat import Threat
from tests.attack_checks import rand, scenario

SIDE = 6
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
"""Checks of types draw at random which items they look at."""
THREATS = st.one_of(
    st.builds(Threat, st.just("l0"), st.integers(1, 12)),
    st.builds(Threat, st.just("patches"), st.integers(1, 3), patch=st.integers(1, 3), corners=st.just("grid")),
    st.builds(Threat, st.just("patches"), st.integers(1, 3), patch=st.integers(1, 3), corners=st.just("anywhere")),
)
SEED = st.integers(0, 2**31)


def explained(changed, threat):
    """Whether some choice of so many squares holds every changed pixel: by trying all."""
    choices = allowed_corners(threat, SIDE, SIDE).nonzero().tolist()
    if threat.norm == "l0":
        return int(changed.sum()) <= threat.count
    for squares in itertools.combinations(choices, min(threat.count, len(choices))):
        left = changed.clone()
        for row, column in squares:
            left[row : row + threat.side, column : column + threat.side] = False
        if not bool(left.any()):
            return True
    return False


@settings(max_examples=50, deadline=None)
@given(THREATS, SEED, st.integers(0, 9))
def test_the_set_is_that_of_all_choices_of_squares(threat, seed, pixels):
    """Against trying every choice; the changes lie close together, so that both answers occur."""
    draw = np.random.default_rng(seed)
    clean, x = torch.zeros(1, 3, SIDE, SIDE), torch.zeros(1, 3, SIDE, SIDE)
    top, left = draw.integers(0, SIDE - 3, 2)
    for row, column in draw.integers(0, 4, (pixels, 2)):
        x[0, draw.integers(3), min(top + row, SIDE - 1), min(left + column, SIDE - 1)] = 0.5
    assert bool(set_of(threat).beyond(x, clean)[0]) == (not explained((x != clean)[0].any(0), threat))


@settings(max_examples=25, deadline=None)
@given(THREATS, SEED)
def test_projection_and_draws_stay_inside(threat, seed):
    clean, x = rand(seed, 3, 3, SIDE, SIDE), 3 * rand(seed + 1, 3, 3, SIDE, SIDE) - 1
    for proposed in (project(x, clean, threat), uniform_in_ball(clean, threat, torch.arange(3) + seed)):
        assert 0 <= float(proposed.min()) <= float(proposed.max()) <= 1
        assert all(explained((one != own).any(0), threat) for one, own in zip(proposed, clean, strict=True))
        set_of(threat).check(proposed, clean, "some", Checks())
        if threat.corners != "anywhere":
            assert torch.equal(project(proposed, clean, threat), proposed)


@settings(max_examples=30, deadline=None)
@given(THREATS.filter(lambda threat: threat.corners != "anywhere"), SEED)
def test_the_projection_is_the_nearest_image_of_the_set(threat, seed):
    clean, x = rand(seed, 1, 2, SIDE, SIDE), 3 * rand(seed + 1, 1, 2, SIDE, SIDE) - 1
    least = float((project(x, clean, threat) - x).square().sum())
    gains = ((x - clean).square() - (x - x.clamp(0, 1)).square())[0].sum(0)
    places = allowed_corners(threat, SIDE, SIDE).nonzero().tolist()
    each = [float(gains[r : r + threat.side, c : c + threat.side].sum()) for r, c in places]
    best = sum(sorted(each)[len(each) - threat.count :])
    assert least == pytest.approx(float((x - clean).square().sum()) - best, rel=1e-9)


@pytest.mark.parametrize(
    ("threat", "change", "met"),
    [
        (Threat("l0", 2), [(0, 0), (1, 1), (5, 5)], "beyond 2 pixels"),
        (Threat("patches", 1, patch=2, corners="grid"), [(1, 1), (2, 2)], "beyond 1 patch of 2 x 2 pixels"),
        (Threat("patches", 1, patch=2, corners="anywhere"), [(1, 1), (3, 1)], "anywhere"),
    ],
)
def test_what_lies_outside_is_refused(threat, change, met):
    clean = torch.full((1, 3, SIDE, SIDE), 0.5)
    x = clean.clone()
    for row, column in change:
        x[..., row, column] = 1
    with pytest.raises(EvaluationError, match=met):
        set_of(threat).check(x, clean, "some", Checks())
    set_of(threat).check(x, clean, "some", Checks(), outside=True)
    for value in (torch.nan, 1.5, -0.1):
        x = clean.clone()
        x[..., 0, 0] = value
        with pytest.raises(EvaluationError, match=r"outside \[0, 1\] or NaN"):
            set_of(threat).check(x, clean, "some", Checks(), outside=True)


STAGE = {"attack": "pgd", "restarts": 1, "steps": 2, "step_size": 0.1, "random_start": True}


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"norm": "patches", "eps": 1}, "both with norm = 'patches'"),
        ({"norm": "linf", "patch": 4, "corners": "grid"}, "neither without"),
        ({"norm": "l0", "eps": 1.5}, "a whole number"),
        ({"norm": "l0", "eps": 5, "clip": False}, "clip = true"),
        ({"norm": "l0", "eps": 5, "space": "normalised"}, "space = 'pixel'"),
        ({"norm": "l0", "eps": 5, "below": [1.5]}, "a whole number"),
        ({"norm": "patches", "eps": 1, "patch": 4, "corners": "middle"}, "corners"),
    ],
)
def test_what_means_nothing_is_refused(fields, what):
    with pytest.raises(BadInputError, match=what):
        scenario([STAGE], **fields)


def test_steps_in_pixels_and_the_size_of_tokens():
    with pytest.raises(BadInputError, match="a step of a value"):
        scenario([STAGE | {"step_size": "0.25 eps"}], norm="l0", eps=5)
    model = load_model("symvit_digits")
    threat = Threat("patches", 2, patch="token", corners="grid")
    assert threat.on_tokens(token_side(model)).side == model.patch_embed.proj.stride[0] == 8
    assert threat.on_tokens(token_side(nn.Identity())) is threat
    assert str(threat) == "2 patches of a token on their grid"


@pytest.mark.parametrize(
    ("threat", "what"),
    [
        (Threat("patches", 1, patch=7, corners="grid"), "fit into the image"),
        (Threat("patches", 5, patch=3, corners="grid"), "at most 4"),
        (Threat("patches", 1, patch="token", corners="grid"), "does not state one"),
    ],
)
def test_what_does_not_fit_is_refused(threat, what):
    with pytest.raises(BadInputError, match=what):
        check_budget(threat, "pixel", torch.zeros(1, 3, SIDE, SIDE))
