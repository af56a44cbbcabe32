"""The bounds on passes hold for what the attack loop really counts, whatever the protocol says beside its attacks."""

from pathlib import Path

import pytest
import torch
from torch import nn

from robustbench_kpca import evaluate
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.attacks.shared.passes import evaluated, stated
from robustbench_kpca.protocols.scenario import parse_scenario
from robustbench_kpca.tasks.rules import possible_passes

pytestmark = pytest.mark.usefixtures("few_resamples")


class Ridge(nn.Module):
    """Three classes, which change every few hundredths along the mean of the image."""

    stochastic = False

    def forward(self, x):
        mean = x.flatten(1).mean(1, keepdim=True)
        return torch.sin(60 * mean + torch.arange(3.0))


class TwoFaced(Ridge):
    """Another class where gradients are recorded: every claim of a gradient attack is retracted."""

    def forward(self, x):
        logits = super().forward(x)
        return logits + 3 * logits.detach().roll(1, 1) if x.requires_grad else logits


@pytest.fixture(scope="module")
def data():
    images = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(3))
    return images, Ridge()(images).argmax(1)


PROTOCOLS = [
    ("pgd20-linf-8_255", {"eps": "1/255"}),
    ("pgd20-linf-8_255", {"eps": "2/255", "below": ["1/255"]}),
    ("pgd20-linf-8_255", {"draws": 3, "eps": "1/255"}),
    ("pgd20-linf-8_255", {"policy": "strongest"}),
    ("pgd20-linf-8_255", {"policy": "last", "restarts": 2}),
    ("pgd20-linf-8_255", {"policy": "strongest", "labels": "true_for_all", "restarts": 2}),
    ("square-linf-8_255", {"queries": 20, "eps": "1/255"}),
    ("autoattack-linf-8_255", {"eps": "1/255", "policy": "strongest"}),
]


@pytest.mark.parametrize(("protocol", "overrides"), PROTOCOLS)
@pytest.mark.parametrize("model", [Ridge, TwoFaced])
def test_what_the_loop_counts_is_possible(protocol, overrides, model, data, tmp_path):
    text = (Path(__file__).parents[3] / "attacks" / f"{protocol}.toml").read_text()
    text = text.replace("steps = 100", "steps = 4").replace("queries = 5000", "queries = 15")
    file, options = tmp_path / "short.toml", dict(overrides)
    file.write_text(text.replace('labels = "true"', f'labels = "{options.pop("labels", "true")}"'))
    record = evaluate(model().eval(), *data, protocol=str(file), audit=False, **options)
    scenario = parse_scenario(dict(record.spec.protocol.resolved), "")
    assert possible_passes(record, scenario) is None
    if model is TwoFaced and protocol.startswith("pgd"):
        assert record.outcomes["retracted"].sum() > 0 or overrides.get("policy") in ("last", "strongest")


def test_formulas_of_attacks():
    assert [name for name in ATTACKS.names() if stated(name) is None] == []
    assert evaluated(("backwards + 1", "min(steps, classes)"), {"steps": 5}, 3) == (4, 3)
    with pytest.raises(NameError, match="open"):
        evaluated(("open(0)", "1"), {}, 3)


@pytest.mark.parametrize("name", ATTACKS.names())
def test_the_file_is_read_as_its_class_says(name):
    attack = ATTACKS.get(name)
    assert stated(name) == (attack.most_passes, getattr(attack, "least_passes", attack.most_passes))


@pytest.mark.parametrize("name", ["torchattacks:PGD", "my_attack.py:Mine", "shared", "_adam", "none"])
def test_what_is_no_attack_of_the_folder_has_no_bounds(name):
    assert stated(name) is None
