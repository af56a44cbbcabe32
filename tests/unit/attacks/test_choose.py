"""Choosing rows is `torch.where`, whether looking at values waits or not; masks kept as numbers change no bit."""

import pytest
import torch
from attack_checks import rand

from robustbench_kpca.attacks.shared import rows
from robustbench_kpca.attacks.shared.ball import finite, project, rescale
from robustbench_kpca.protocols.threat import Threat


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("chosen", [[], [0, 3], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("shape", [(), (3, 4, 4)])
def test_rows_are_chosen_as_torch_where_does(monkeypatch, chosen, shape, at_once):
    monkeypatch.setattr(rows, "AT_ONCE", rows.AT_ONCE if at_once else frozenset())
    yes, no = rand(0, 5, *shape), rand(1, 5, *shape)
    yes.view(5, -1)[0, 0], no.view(5, -1)[1, 0] = torch.nan, torch.inf
    mask = torch.tensor([row in chosen for row in range(5)])
    given = yes.clone(), no.clone()
    result = rows.choose(mask, yes, no)
    expected = torch.where(mask.view(5, *[1] * len(shape)), yes, no)
    assert torch.equal(result.view(torch.int64), expected.view(torch.int64))
    for one, copy in zip((yes, no), given, strict=True):
        assert torch.equal(one.view(torch.int64), copy.view(torch.int64)), "what was given is not written into"
    assert rows.none(mask) == (at_once and not chosen)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_images_with_one_bad_value_are_found(value):
    x = rand(0, 4, 2, 5, 5)
    x[1, 0, 2, 3] = x[3, 1, 4, 4] = value
    assert finite(x).tolist() == [True, False, True, False]


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("size", [1e-6, 0.05, 0.9])
def test_projections_round_towards_the_centre(norm, size):
    """Against the rule in words: the nearest single-precision value or, if that lies beyond, the next one inwards."""
    centre = rand(0, 3, 3, 16, 16, dtype=torch.float32)
    centre[0] = 0
    centre[1] = 1
    x, threat = centre + size * (rand(1, 3, 3, 16, 16, dtype=torch.float32) - 0.5), Threat(norm, size, clip=False)
    delta = x.double() - centre.double()
    far = (delta.flatten(1).norm(dim=1) if norm == "l2" else delta.flatten(1).abs().sum(1)).view(-1, 1, 1, 1)
    exact = centre.double() + delta * (size / far).clamp(max=1)
    nearest = exact.float()
    beyond = (nearest.double() - centre.double()).abs() > (exact - centre.double()).abs() * (1 + 1e-15)
    expected = torch.where(beyond, torch.nextafter(nearest, centre), nearest)
    found = rescale(x, centre, threat)
    assert bool(((found.double() - expected.double()).abs() <= 1e-12).float().mean() > 0.999)
    assert bool(((found.double() - centre.double()).abs() <= (exact - centre.double()).abs() + 1e-15).all())
    if norm == "l2":
        assert torch.equal(project(x, centre, threat), found)
