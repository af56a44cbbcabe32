"""AutoAttack standard is data: its stages, its passes, and its verdict beside the reference's."""

import pytest
import torch

from robustbench_kpca import attack, load_data, load_model
from robustbench_kpca.scenario import load_scenario

PROTOCOL = "autoattack-linf-8_255"


def test_the_preset_is_the_published_ensemble():
    _, scenario = load_scenario(PROTOCOL)
    stages = [(stage.attack, stage.restarts, stage.options) for stage in scenario.stage]
    apgd = {"steps": 100, "rho": 0.75}
    assert stages == [
        ("apgd", 1, apgd | {"loss": "ce", "targets": 1}),
        ("apgd", 1, apgd | {"loss": "dlr_targeted", "targets": 9}),
        ("fab", 1, {"steps": 100, "targets": 9, "alpha_max": 0.1, "eta": 1.05, "beta": 0.9}),
        ("square", 1, {"queries": 5000, "p_init": 0.8}),
    ]


class _Unbreakable(torch.nn.Module):
    """Class 0 whatever the image, with gradients that are not zero."""

    def forward(self, x):
        scores = x.flatten(1) @ torch.linspace(-0.02, 0.02, 48 * 9, dtype=x.dtype).view(48, 9)
        return torch.cat([5 + 0 * scores[:, :1], scores], 1)


@pytest.mark.slow
def test_passes_of_a_sample_that_is_never_broken():
    images = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    result = attack(_Unbreakable().eval(), images, torch.zeros(2, dtype=torch.int64), PROTOCOL, batch_size=2)
    assert not bool(result.broken.any())
    # APGD-CE 101 gradients; APGD-T 9 x 101; FAB-T 9 x 100 with a check each; Square 5,000 queries and the start
    assert result.backwards.tolist() == [101 + 909 + 900] * 2
    looks = 1 + 2 + 2  # what the loop verifies of the gradient stages, and the clean logits of the targeted ones
    assert result.forwards.tolist() == [101 + 909 + 1800 + 5001 + looks] * 2


def test_a_model_that_falls_costs_little():
    """Where APGD-CE breaks every sample, later stages see nobody."""
    images, labels = load_data("digits", limit=32).tensors()
    result = attack(load_model("fan_digits"), images, labels, PROTOCOL)
    assert bool(result.broken.all())
    assert int(result.backwards.max()) <= 101


@pytest.mark.slow
def test_the_reference_agrees(fork):
    pyautoattack = pytest.importorskip("pyautoattack")
    images, labels = load_data("digits", limit=16).tensors()
    model = load_model("vit_digits")
    ours = attack(model, images, labels, PROTOCOL, eps="4/255", steps=20, queries=200)
    reference = pyautoattack.AutoAttack(model, norm="Linf", eps=4 / 255, version="standard", seed=0)
    reference.apgd.n_iter = reference.apgd_targeted.n_iter = reference.fab.n_iter = 20
    reference.square.n_queries = 200
    found = reference.run_standard_evaluation(images, labels, batch_size=64)[0]
    with torch.no_grad():
        robust = model(found).argmax(1) == labels
    assert int((~ours.broken).sum()) <= int(robust.sum()) + 1
    assert int((ours.broken == robust).sum()) <= 2
