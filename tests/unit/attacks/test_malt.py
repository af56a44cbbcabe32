"""MALT: its targets where distances are known, and that it is Auto-PGD towards them. The loss of PMA by its formula."""

import pytest
import torch
from attack_checks import drive, rand
from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attacks.apgd import APGD
from robustbench_kpca.attacks.malt import MALT
from robustbench_kpca.attacks.shared.losses import probability_margin, runners_up
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.verification.conformance.watched_query import WatchedQuery

CLASSES, SHAPE = 6, (2, 3, 3)
DUAL = {"linf": 1, "l2": 2}
HOW = {"steps": 6, "loss": "dlr_targeted", "rho": 0.75}


@pytest.fixture(scope="module")
def planes():
    """A linear model whose classes differ in the length of their weights, images well inside the box, labels."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(18, CLASSES, bias=False)).double().eval()
    with torch.no_grad():
        net[1].weight.copy_((rand(0, CLASSES, 18) - 0.5) * torch.tensor([1, 8, 1, 4, 2, 0.5])[:, None])
    x = 0.4 + 0.2 * rand(1, 40, *SHAPE)
    return net, x, net(x).argmax(1)


def distances(planes, norm):
    net, x, y = planes
    weight, logits = net[1].weight.detach(), net(x).detach()
    gap = logits.gather(1, y[:, None]) - logits
    slope = (weight[y][:, None] - weight[None]).norm(p=DUAL[norm], dim=2)
    return torch.where(nn.functional.one_hot(y, CLASSES) == 1, torch.inf, gap / slope)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_targets_are_the_classes_of_the_closest_boundaries(planes, norm):
    net, x, y = planes
    malt = MALT(targets=3, candidates=5, **HOW)
    state = drive(malt, net, x, y, Threat(norm, 0.01), 1)
    expected = distances(planes, norm).argsort(1)[:, :3]
    assert torch.equal(state["targets"], expected)
    assert int((expected[:, 0] != runners_up(net(x), y, 1)[:, 0]).sum()) >= 5, "the order of logits must be another"


def test_candidates_follow_the_largest_logits_and_are_no_fewer_than_targets(planes):
    net, x, y = planes
    state = drive(MALT(targets=2, candidates=2, **HOW), net, x, y, Threat("linf", 0.01), 1)
    assert torch.equal(state["targets"].sort(1).values, runners_up(net(x), y, 2).sort(1).values)
    net, x, _ = planes
    logits = net(x.round()).detach()
    y = logits.argmax(1)
    malt = MALT(targets=3, candidates=5, **HOW)
    state = drive(malt, lambda z: net(z.round()), x, y, Threat("linf", 0.01), 1)
    assert torch.equal(state["targets"], runners_up(logits, y, 3))
    logits, y = 4 * rand(0, 7, 5), torch.tensor([0, 1, 2, 3, 4, 0, 1])
    for row, label in enumerate(y.tolist()):
        powers = logits[row].exp()
        other = max(float(powers[k]) for k in range(5) if k != label)
        expected = (other - float(powers[label])) / float(powers.sum())
        assert float(probability_margin(logits, y)[row]) == pytest.approx(expected)
    with pytest.raises(BadInputError, match="candidates = 1"):
        MALT(targets=2, candidates=1, **HOW)
    x = torch.zeros(1, 1, 2, 2)
    labels = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(BadInputError, match="attack 'malt' in l1"):
        MALT(targets=1, candidates=1, **HOW).start(x, labels, Threat("l1", 1.0), labels)


def test_a_run_is_that_of_auto_pgd(planes):
    net, x, y = planes
    threat, malt, apgd = Threat("linf", 0.01), MALT(targets=2, candidates=5, **HOW), APGD(targets=2, **HOW)
    ours = malt.step(malt.start(x, y, threat, torch.arange(40)), threat, WatchedQuery(net))
    theirs = apgd.start(x, y, threat, torch.arange(40))
    theirs |= {name: ours[name] for name in ("targets", "classes")}
    theirs = apgd.step(theirs, threat, WatchedQuery(net))
    for _ in range(13):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        ours, theirs = (one.step(state, threat, WatchedQuery(net)) for one, state in ((malt, ours), (apgd, theirs)))
    assert bool(ours["finished"].all())
