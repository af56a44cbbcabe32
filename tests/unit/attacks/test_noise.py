"""Noise: one uniform draw, one look."""

import pytest
import torch
from attack_checks import drive, rand

from robustbench_kpca.attacks.noise import Noise
from robustbench_kpca.attacks.shared.ball import distance
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.verification.conformance.attack import Case, is_independent


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.5), ("l1", 2.0)])
def test_it_is_one_draw_from_the_ball(norm, eps):
    x, threat = 0.3 + 0.4 * rand(0, 50, 2, 4, 4), Threat(norm, eps)
    shown = []
    state = drive(Noise(), None, x, torch.zeros(50, dtype=torch.int64), threat, None)
    far = distance(state["x"], x, norm)
    assert float(far.max()) <= eps + 1e-9
    assert float(far.mean()) > 0.8 * eps  # 32 dimensions: nearly all of a ball is near its surface
    assert not shown
    is_independent(Noise, Case.usual(threat), 1)
