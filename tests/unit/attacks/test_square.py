"""Square: step for step what the reference does from its own draws; schedule, patterns, reach, passes."""

import math

import numpy as np
import pytest
import torch
from attack_checks import Wavy, drive, rand

from robustbench_kpca.attacks import square
from robustbench_kpca.attacks.square import Square
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.verification.conformance.watched_query import WatchedQuery


class Recorder:
    """Stands for torch.rand: draws from a generator of its own and remembers everything."""

    def __init__(self):
        self.draws, self.generator, self.rand = [], torch.Generator().manual_seed(0), torch.rand

    def __call__(self, shape):
        self.draws.append(self.rand(shape, generator=self.generator))
        return self.draws[-1]


def reference(monkeypatch, model, x, y, norm, eps, queries):
    """Run the reference; return its best images and its draws."""
    attack = pytest.importorskip("pyautoattack.square").SquareAttack(
        model, norm={"linf": "Linf", "l2": "L2", "l1": "L1"}[norm], n_queries=queries, eps=eps, resc_schedule=False
    )
    recorder = Recorder()
    attack.init_hyperparam(x)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "rand", recorder)
        spent, best = attack.attack_single_run(x, y)
    assert spent.tolist() == [queries + 1.0] * len(x)
    return best, recorder.draws


def in_our_order(draws, n, channels, norm, queries):
    """Arrange the reference's draws, most of them shared by the batch, as `uniforms` would have returned them."""
    draws = [draw.double() for draw in draws]
    first, each = (1, 3) if norm == "linf" else (len(draws) - 6 * queries, 6)
    parts = [draw.reshape(n, -1) if draw.numel() > 1 else draw.expand(n, 1) for draw in draws[:first]]
    ordered = {0: torch.cat(parts, 1)}
    for query in range(queries):
        own = draws[first + each * query : first + each * (query + 1)]
        *places, last = own
        shared = torch.cat([*places, torch.zeros(5 - len(places)).double()]).expand(n, 5)
        ordered[query + 1] = torch.cat([shared, last.reshape(-1, channels).expand(n, channels)], 1)
    return ordered


@pytest.mark.parametrize("size", [10, 17])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_it_equals_the_reference_step_for_step(norm, size, monkeypatch):
    queries, n, channels, eps = 20, 4, 3, {"linf": 8 / 255, "l2": 0.7, "l1": 12.0}[norm]
    model = Wavy((channels, size, size), lead=60.0, dtype=torch.float32)
    x, y = rand(1, n, channels, size, size, dtype=torch.float32), torch.zeros(n, dtype=torch.int64)
    theirs, draws = reference(monkeypatch, model, x, y, norm, eps, queries)
    ordered = in_our_order(draws, n, channels, norm, queries)
    monkeypatch.setattr(square, "uniforms", lambda keys, counters, count: ordered[int(counters[0])][:, :count])
    ordered[queries + 1] = ordered[queries]  # our last step proposes once more
    state = drive(Square(queries=queries, p_init=0.8), model, x, y, Threat(norm, eps), queries + 1)
    assert torch.allclose(state["best"], theirs, atol=1e-5, rtol=0)
    start = drive(Square(queries=queries, p_init=0.8), model, x, y, Threat(norm, eps), 1)["best"]
    assert bool(((state["best"] - start).flatten(1).abs().amax(1) > 1e-3).any()), "nothing was accepted"


def test_windows_shrink_as_the_reference_prescribes():
    for norm, least in (("linf", 1), ("l2", 3), ("l1", 3)):
        reference = pytest.importorskip("pyautoattack.square").SquareAttack(None, p_init=0.7, resc_schedule=False)
        counts = [0, 9, 10, 11, 50, 51, 200, 201, 500, 501, 1000, 1001, 2000, 2001, 4000, 4001, 6001, 8000, 8001, 10**5]
        for height, width in ((32, 32), (28, 24), (4, 4), (224, 224)):
            image = torch.zeros(1, 3, height, width).expand(len(counts), -1, -1, -1)
            ours = Square(queries=1, p_init=0.7)._side(torch.tensor(counts), image, Threat(norm, 0.5)).tolist()
            for count, side in zip(counts, ours, strict=True):
                wanted = max(round(math.sqrt(reference.p_selection(count) * height * width)), least)
                wanted += norm != "linf" and wanted % 2 == 0
                assert side == min(wanted, height, width)


@pytest.mark.parametrize("order", [1, 2])
def test_bumps_are_the_reference_s(order):
    reference = pytest.importorskip("pyautoattack.square").SquareAttack(None, norm=f"L{order}")
    reference.device = "cpu"
    for side in (1, 2, 3, 4, 5, 7, 12, 45):
        top, bottom = reference.eta_rectangles(side // 2, side), -reference.eta_rectangles(side - side // 2, side)
        theirs = torch.cat([top, bottom])
        ours = square.bump(side, order)
        assert np.linalg.norm(ours.ravel(), order) == pytest.approx(1)
        assert np.allclose(ours, theirs / theirs.norm(p=order), atol=1e-6)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_proposals_use_the_whole_budget_and_change_one_window(norm):
    shape, threat = (2, 12, 12), Threat(norm, {"linf": 0.05, "l2": 0.4, "l1": 4.0}[norm])
    x, y = 0.3 + 0.4 * rand(1, 5, *shape), torch.zeros(5, dtype=torch.int64)
    attack, model = Square(queries=100, p_init=0.3), Wavy(shape, lead=60.0)
    state = attack.start(x, y, threat, torch.arange(5))
    shown = []
    query = WatchedQuery(model, lambda images, _rows, _outside: shown.append(images))
    for number in range(40):
        best = state["best"]
        state = attack.step(state, threat, query)
        delta = (shown[-1] - x).flatten(1)
        size = delta.norm({"linf": torch.inf, "l2": 2, "l1": 1}[norm], dim=1)
        full = torch.isclose(size, torch.tensor(threat.eps).double(), atol=1e-9)
        assert bool(((full | (size < threat.eps)) if norm == "l1" else full).all()), "in L1 the box may take some"
        if norm == "linf" and number > 0:
            changed = (shown[-1] - best).abs().amax(1) > 1e-9
            assert not bool(changed[:, -1].any() | changed[:, :, -1].any()), "the last row and column are never reached"
            for image in changed:
                rows, columns = image.any(1).nonzero(), image.any(0).nonzero()
                if len(rows):
                    assert int(rows.max() - rows.min()) < 7
                    assert int(columns.max() - columns.min()) < 7
    first = drive(attack, model, x, y, threat, 1)["loss"]
    assert bool((state["loss"] < first).all())


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 3), (9, 5)])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_any_size_of_image_will_do(norm, height, width):
    x, y = rand(0, 3, 2, height, width), torch.zeros(3, dtype=torch.int64)
    threat = Threat(norm, 0.1)
    state = drive(Square(queries=4, p_init=0.8), Wavy((2, height, width), lead=60.0), x, y, threat, 4)
    assert bool(torch.isfinite(state["x"]).all())
    assert not torch.equal(state["x"], x)
