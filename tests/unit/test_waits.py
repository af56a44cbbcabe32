"""How often a step waits for a device: counts of calls that look at values, not timings. And outcomes stay the same."""

import statistics

import pytest
import torch
from _shared import as_on_a_gpu, waits
from attack_checks import MISCLASSIFIED, Wavy, rand, scenario
from test_free_rows import APGD_T, CASES, FAB_T, SHAPE, SPSA, SQUARE, attacked, same

from robustbench_kpca._core.errors import EvaluationError
from robustbench_kpca._engine.attack_loop.engine import Engine
from robustbench_kpca._engine.inference.runner import Runner

CPU = torch.device("cpu")
PGD = {"attack": "pgd", "restarts": 1, "steps": 12, "step_size": "0.25 eps", "random_start": True}
APGD = {"attack": "apgd", "restarts": 1, "steps": 12, "loss": "ce", "targets": 1, "rho": 0.75}
CW = {
    "attack": "cw", "restarts": 1, "steps": 12, "lr": 0.01, "binary_steps": 1, "initial_const": 1.0, "confidence": 0.0
}  # fmt: skip
DDN = {"attack": "ddn", "restarts": 1, "steps": 12, "gamma": 0.05, "init_norm": 1.0}
FAB_L2 = FAB_T | {"random_start": False}

MOST = [  # waits of a usual step
    (PGD, "linf", 2),
    (APGD, "linf", 3),
    (APGD, "l2", 3),
    (CW, "l2", 2),
    (DDN, "l2", 3),
    (APGD_T, "linf", 4),
    (FAB_L2, "linf", 5),
    (FAB_L2, "l2", 5),
    (SQUARE, "linf", 6),  # keys and counters of two draws are copied to the host
]


@pytest.mark.parametrize(("stage", "norm", "most"), MOST)
def test_a_full_batch_waits_at_most_so_often_in_a_step(stage, norm, most):
    x = rand(0, 6, *SHAPE, dtype=torch.float32)
    runner = Runner(Wavy(SHAPE, lead=20.0, dtype=torch.float32).eval(), 6, CPU)
    protocol = scenario([stage], norm=norm, eps=0.01)
    engine = Engine(runner, protocol, MISCLASSIFIED, [str(row) for row in range(6)], 0, lambda sample: None)
    found = [counts.total() for counts in waits(engine, iter([(list(range(6)), x, torch.zeros(6, dtype=torch.int64))]))]
    assert 0 < statistics.median(found) <= most


@pytest.mark.parametrize(
    ("stages", "norm", "fields"), [*CASES, ([SPSA], "linf", {}), ([CW], "l2", {}), ([DDN], "l2", {})]
)
def test_outcomes_are_the_same_where_looking_waits(stages, norm, fields):
    theirs, _ = attacked(stages, norm, **fields)
    with as_on_a_gpu():
        ours, _ = attacked(stages, norm, **fields)
    same(ours, theirs)


class Infinite(torch.autograd.Function):
    """Passes images on, but not their gradients."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        return gradient * torch.inf


def test_a_violation_that_is_seen_late_refuses_the_result(monkeypatch):
    class Broken(Wavy):
        def forward(self, x):
            return super().forward(Infinite.apply(x))

    with as_on_a_gpu(), pytest.raises(EvaluationError, match="gradient is NaN or infinite on 9 of"):
        attacked([PGD], model=Broken(SHAPE, lead=9.0))
    for norm, said in (("linf", "proposed a distance of"), ("l2", "proposed a distance of")):
        project = "robustbench_kpca.attacks.shared.one_gradient.project"
        monkeypatch.setattr(project, lambda x, centre, threat: (x + 1e-3).clamp(0, 1))
        with as_on_a_gpu(), pytest.raises(EvaluationError, match=said):
            attacked([PGD | {"steps": 60, "step_size": "0.9 eps"}], norm, model=Wavy(SHAPE, lead=200.0))
