"""What a step asks of a device: counts on a stand-in, not timings. And outcomes stay the same."""

import statistics
from dataclasses import fields

import pytest
import torch
from _shared import as_on_a_gpu
from _stand_in import CASES as CASES_THERE
from _stand_in import DEVICE, Load, stand_in
from attack_checks import Wavy
from fakes import Scaled
from test_free_rows import CASES, SHAPE, SPSA, attacked, same

from robustbench_kpca._core.errors import EvaluationError

PGD = {"attack": "pgd", "restarts": 1, "steps": 12, "step_size": "0.25 eps", "random_start": True}
APGD = {"attack": "apgd", "restarts": 1, "steps": 12, "loss": "ce", "targets": 1, "rho": 0.75}
CW = {
    "attack": "cw", "restarts": 1, "steps": 12, "lr": 0.01, "binary_steps": 1, "initial_const": 1.0, "confidence": 0.0
}  # fmt: skip
DDN = {"attack": "ddn", "restarts": 1, "steps": 12, "gamma": 0.05, "init_norm": 1.0}
MOST = dict.fromkeys(CASES_THERE, 1) | dict.fromkeys(
    ("APGD-T, 2 targets", "APGD-CE in L1", "MALT, 2 targets", "FAB-T, 2 targets", "FAB-T in L2", "DDN", "Square"), 2
) | dict.fromkeys(("SPSA, 16 samples", "SPSA of CleverHans", "SEA's APGD, every pixel"), 3) | {
    "FAB, untargeted": 3, "Square in L2": 4, "Square in L1": 4,
    "Sparse-RS on patches": 2, "Sparse-RS, patches anywhere": 4, "patch, anywhere": 6,
}  # fmt: skip
"""How often a usual step waits."""
BYTES = {"Sparse-RS, patches anywhere": (64, 1280), "patch, anywhere": (160, 1280)}
"""Most bytes up and down, in place of 64 and 1,024: whether patches anywhere cover all changes is found on the host."""
OPERATORS = {"PGD": 110, "APGD-CE": 170, "FAB-T, 2 targets": 400, "Square": 160, "SPSA, 16 samples": 1800, "C&W": 240}


USUAL = (
    "PGD",
    "APGD-T, 2 targets",
    "FAB-T in L2",
    "C&W",
    "DDN",
    "Square in L2",
    "SPSA, 16 samples",
    "HopSkipJump",
    *BYTES,
)
EACH = [name if name in USUAL | BYTES.keys() else pytest.param(name, marks=pytest.mark.slow) for name in CASES_THERE]


@pytest.mark.parametrize("name", EACH)
def test_a_step_asks_little_of_a_device(name):
    """Counted on the stand-in device, on a full batch that nothing breaks; the numbers do not depend on the size."""
    steps = CASES_THERE[name].loads(side=8)
    usual = {one.name: statistics.median(getattr(load, one.name) for load in steps) for one in fields(Load)}
    uploaded, downloaded = BYTES.get(name, (64, 1024))
    assert usual["uploaded"] <= uploaded
    assert usual["downloaded"] <= downloaded
    assert 0 < usual["waits"] <= MOST[name]
    assert usual["operators"] <= OPERATORS.get(name, 1800)


def test_the_stand_in_device_counts_and_refuses_as_a_gpu_would():
    with stand_in() as counter:
        x = torch.tensor([1.0, 2.0, 3.0]).to(DEVICE)
        assert (counter.load.uploaded, counter.load.waits, counter.load.operators) == (12, 1, 0)
        x = x + torch.ones(3, device=DEVICE).double()[:2].sum()
        assert (counter.load.operators, counter.load.doubles) == (4, 0)
        x[x > 3] += 1  # an index of booleans waits, twice here
        assert x.tolist() == [3.0, 5.0, 6.0]
        assert (counter.load.downloaded, counter.load.waits) == (12, 4)
        with pytest.raises(RuntimeError, match="tensors of the host and of the device"):
            x + torch.ones(3)
    with pytest.raises(RuntimeError, match="outside of stand_in"):
        x + 1


@pytest.mark.parametrize(
    ("stages", "norm", "fields"), [*CASES[::2], ([SPSA], "linf", {}), ([CW], "l2", {}), ([DDN], "l2", {})]
)
def test_outcomes_are_the_same_where_looking_waits(stages, norm, fields):
    theirs, _ = attacked(stages, norm, **fields)
    with as_on_a_gpu():
        ours, _ = attacked(stages, norm, **fields)
    same(ours, theirs)


def test_a_violation_that_is_seen_late_refuses_the_result(monkeypatch):
    class Broken(Wavy):
        def forward(self, x):
            return super().forward(Scaled.apply(x, torch.inf))

    with as_on_a_gpu(), pytest.raises(EvaluationError, match="gradient is NaN or infinite on 9 of"):
        attacked([PGD], model=Broken(SHAPE, lead=9.0))
    for norm, said in (("linf", "proposed a distance of"), ("l2", "proposed a distance of")):
        project = "robustbench_kpca.attacks.shared.one_gradient.project"
        monkeypatch.setattr(project, lambda x, centre, threat: (x + 1e-3).clamp(0, 1))
        with as_on_a_gpu(), pytest.raises(EvaluationError, match=said):
            attacked([PGD | {"steps": 60, "step_size": "0.9 eps"}], norm, model=Wavy(SHAPE, lead=200.0))
