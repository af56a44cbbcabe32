"""Preflight: planted faults are refused by name and can be allowed; honest models pass."""

import pytest
import torch
from torch import nn

from robustbench_kpca import attack, evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.audit.preflight import CHECKS, inspect
from robustbench_kpca.models import bundled

pytestmark = pytest.mark.usefixtures("few_resamples")


class Wrapped(nn.Module):
    def __init__(self, inner, change):
        super().__init__()
        self.inner, self.change = inner, change
        self.eval()

    def forward(self, x):
        return self.change(self.inner(x))


class Noise:
    def __init__(self, size):
        self.size, self.rng = size, torch.Generator().manual_seed(0)

    def __call__(self, logits):
        return logits + self.size * torch.randn(logits.shape, generator=self.rng)


FAULTS = {
    "stochastic": [Noise(1e-3), Noise(0.1), Noise(1.0)],
    "batch": [lambda z, share=share: z + share * z.mean(0) for share in (0.01, 0.1, 1.0)],
    "probabilities": [lambda z, t=t: (z / t).softmax(1) for t in (0.5, 1.0, 3.0)],
    "offset": [lambda z, by=by: z + by for by in (3e5, 1e6, -1e7)],
    "vanishing-loss": [lambda z, by=by: z * by for by in (10.0, 100.0, 1000.0)],
}


@pytest.fixture(scope="module")
def batch():
    return load_data("digits", limit=40).tensors()


def checks(model, batch):
    return [finding.check for finding in inspect(Runner(model, 40, torch.device("cpu")), *batch)]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * ("adv" in name)) for name in bundled() if "_digits" in name],
)
def test_honest_models_pass(name, batch):
    assert checks(load_model(name), batch) == []


@pytest.mark.parametrize("base", ["vit_digits", pytest.param("fan_digits_adv", marks=pytest.mark.slow)])
@pytest.mark.parametrize("check", FAULTS)
@pytest.mark.parametrize("strength", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_planted_faults_are_refused_by_name(base, check, strength, batch):
    model = Wrapped(load_model(base), FAULTS[check][strength])
    found = checks(model, batch)
    assert check in found
    with pytest.raises(BadInputError, match=f"--allow {found[0]}"):
        attack(model, *batch, "fgsm-linf-8_255")


def test_what_is_allowed_is_recorded_and_clean_accuracy_needs_no_preflight(batch):
    model = Wrapped(load_model("vit_digits"), FAULTS["probabilities"][1])
    record = evaluate(model, *batch, protocol="fgsm-linf-8_255", allow=["probabilities"], audit=False)
    assert record.flags[0].startswith("preflight, allowed: probabilities: its outputs")
    with pytest.raises(BadInputError, match=r"'probability'.*did you mean"):
        evaluate(model, *batch, protocol="fgsm-linf-8_255", allow=["probability"], audit=False)
    model = Wrapped(load_model("vit_digits"), FAULTS["offset"][1])
    assert evaluate(model, *batch, protocol="clean", audit=False).flags == ()
    images, labels = batch
    model = load_model("vit_digits")
    assert inspect(Runner(model, 1, torch.device("cpu")), images[:1], labels[:1]) == []


def test_probabilities_are_refused_and_every_check_is_tried(batch):
    # Their calibration errors and energies would be those of a second softmax.
    model = Wrapped(load_model("vit_digits"), FAULTS["probabilities"][1])
    with pytest.raises(BadInputError, match="--allow probabilities"):
        evaluate(model, *batch, protocol="clean")
    (flag,) = evaluate(model, *batch, protocol="clean", allow=["probabilities"]).flags
    assert flag.startswith("preflight, allowed: probabilities")
    assert {*FAULTS, "future"} == set(CHECKS)  # of texts, which are shown in test_language.py


@pytest.mark.untyped
def test_a_function_is_no_model(batch):
    model = load_model("vit_digits")
    for call in (evaluate, attack):
        with pytest.raises(BadInputError, match=r"a model of type function; expected a torch\.nn\.Module"):
            call(lambda images: model(images), *batch, protocol="fgsm-linf-8_255")
