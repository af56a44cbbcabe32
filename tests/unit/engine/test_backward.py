"""Stages whose gradients go back through a twin: which gradient that is, what is refused, and what it finds."""

import pytest
import torch
from attack_checks import USUAL, rand, scenario
from torch import nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import evaluate, load_data, load_model, place
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.backward import backward_of
from robustbench_kpca._engine.attack_loop.passes import most_passes
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.attention.rpc import Pursuit, RPCAttention
from robustbench_kpca.attention.softmax import SoftmaxAttention
from robustbench_kpca.models.altered import altered
from robustbench_kpca.tasks.prepare import prepare
from robustbench_kpca.training.recipe import load_recipe

PGD = {"attack": "pgd", "restarts": 1, "steps": 10, "step_size": "0.25 eps", "random_start": False}
CPU = torch.device("cpu")


class Steps(SoftmaxAttention):
    """Values rounded to sixteenths: their gradient is zero."""

    def __init__(self, dim, num_heads=8, values="rounded", **options):
        super().__init__(dim, num_heads, **options)
        self.values = values

    def attend(self, q, k, v, *, causal=False, mask=None):
        v = super().attend(q, k, v, causal=causal, mask=mask)
        return (v * 16).round() / 16 if self.values == "rounded" else v


class Rounded(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner((x * 64).round() / 64)


def runner(model):
    return Runner(model.eval(), 4, CPU)


def test_the_gradient_is_that_of_the_twin_at_the_answers_of_the_model():
    model = RPCAttentionNet()
    x, weight = rand(0, 4, 3, 6, 6, dtype=torch.float32), torch.randn(3, generator=torch.Generator().manual_seed(1))

    def loss(logits):
        return (logits.square() * weight).sum(1)

    shown = runner(model)
    with backward_of("lam=inf", shown):
        losses, gradient, logits = shown.gradient(x, loss)
    plain = model(x)
    assert torch.equal(logits, plain.detach())
    assert torch.equal(losses, loss(plain).detach())
    with altered(model, "lam=inf") as smooth:
        at = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(smooth(at), at, 2 * plain.detach() * weight)
    assert torch.allclose(gradient, expected, atol=1e-6)
    assert not torch.allclose(gradient, shown.gradient(x, loss)[1], atol=1e-4)


class RPCAttentionNet(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.attention, self.head = RPCAttention(12, num_heads=2, lam=0.5), nn.Linear(12, 3)
        self.eval()

    def forward(self, x):
        return self.head(self.attention(x.flatten(2).view(len(x), -1, 12)).mean(1))


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("iterations", "OPTION=VALUE"),
        ("gradient=restored", "without such an option"),
        ("iterations=half", "a value like 4"),
        ("lam=-1", "lam > 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(setting, what):
    model = RPCAttentionNet()
    before = model.attention.pursuit
    with pytest.raises(BadInputError, match=what), altered(model, setting):
        pass
    assert model.attention.pursuit is before


def test_options_have_the_type_of_their_field_and_are_restored():
    model = RPCAttentionNet()
    model.attention.pursuit = Pursuit(lam=1)
    with altered(model, "lam=inf"):
        assert model.attention.pursuit.lam == float("inf")
    assert repr(load_model("rpc_symvit_digits", lam=1).config["lam"]) == "1.0"
    whole, real = (load_recipe("rpc_symvit_digits", {"model_options.lam": lam})[1] for lam in (1, 1.0))
    assert whole.digest({}) == real.digest({})
    model = RPCAttentionNet()
    before = model.attention.pursuit
    for asked, given in ((2, 2), (9, before.iterations)):
        with altered(model, f"iterations={asked}"):
            assert model.attention.pursuit.iterations == given
    assert model.attention.pursuit == before


@pytest.mark.parametrize(
    "stage",
    [
        {"attack": "square", "restarts": 1, "queries": 5, "p_init": 0.8},
        {"attack": "torchattacks:PGD", "restarts": 1},
        {"attack": "noise", "restarts": 1},
    ],
)
def test_attacks_without_gradients_of_the_loop_have_no_twin(stage, tmp_path):
    lines = [f"{key} = {value!r}" for key, value in (stage | {"backward_of": "iterations=0"}).items()]
    (tmp_path / "p.toml").write_text(USUAL + "\n[[stage]]\n" + "\n".join(lines) + "\n")
    with pytest.raises(BadInputError, match="an attack of the package that takes gradients"):
        prepare(str(tmp_path / "p.toml"), {})


def test_stages_of_a_protocol_and_their_twins():
    label, changed = prepare("pgd20-linf-8_255", {"backward_of": "iterations=0"})
    assert label == "pgd20-linf-8_255+backward_of=iterations=0"
    assert [stage.name for stage in changed.stage] == ["pgd through iterations=0"]
    with pytest.raises(BadInputError, match="an attack of the package that takes gradients"):
        prepare("autoattack-linf-8_255", {"backward_of": "iterations=0"})
    for protocol in ("clean", "imagenet-c"):
        with pytest.raises(BadInputError, match="has no field 'backward_of'"):
            prepare(protocol, {"backward_of": "iterations=0"})
    plain, through = scenario([PGD]), scenario([PGD | {"backward_of": "iterations=0"}])
    assert "backward_of" not in plain.model_dump(mode="json")["stage"][0]
    assert plain.digest() != through.digest()
    assert scenario(through.model_dump(mode="json")["stage"]) == through
    assert (most_passes(plain, 10).forwards, most_passes(through, 10).forwards) == (1 + 11, 1 + 21)


def protocol(folder, *stages):
    text = USUAL
    for stage in stages:
        text += "\n[[stage]]\n" + "".join(
            f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}\n"
            for key, value in stage.items()
        )
    (folder / "p.toml").write_text(text)
    return folder / "p.toml"


def test_masked_attention_is_found_and_the_record_names_the_twin(tmp_path, few_resamples, fork):
    """Values rounded in every layer: PGD breaks little; through the values themselves most that a plain model loses."""
    softmax = load_model("vit_digits")
    masked = place(load_model("vit_digits"), Steps, layers="all")
    data = load_data("digits", limit=48)
    own = evaluate(masked, data, protocol=protocol(tmp_path, PGD), name="masked", audit=False, batch_size=48)
    both = protocol(tmp_path, PGD, PGD | {"backward_of": "values=smooth"})
    adaptive = evaluate(masked, data, protocol=both, name="masked", audit=False, batch_size=48)
    plain = evaluate(softmax, data, protocol=protocol(tmp_path, PGD), name="plain", audit=False, batch_size=48)
    robust = [record.metrics["robust_accuracy"].value for record in (own, adaptive, plain)]
    assert robust[0] > robust[1] + 0.2
    assert robust[1] <= robust[2] + 0.1
    assert "pgd through values=smooth" in set(adaptive.outcomes["broken_by"])


@pytest.mark.slow
def test_autoattack_overstates_masked_attention_and_says_so(tmp_path, few_resamples, fork):
    """It ends with Square, which needs no gradient, and still finds 20 points less than the stage through the twin."""
    masked, data = place(load_model("vit_digits"), Steps, layers="all"), load_data("digits", limit=48)
    how = {"eps": "4/255", "name": "masked", "batch_size": 48}
    both = protocol(tmp_path, PGD, PGD | {"backward_of": "values=smooth"})
    ensemble = evaluate(masked, data, protocol="autoattack-fast-linf-8_255", audit="quick", **how)
    adaptive = evaluate(masked, data, protocol=both, audit=False, **how)
    assert ensemble.metrics["robust_accuracy"].value > adaptive.metrics["robust_accuracy"].value + 0.2
    assert any("zero everywhere" in flag for flag in ensemble.flags)
    assert {"gradients", "slope", "reach"} <= {check.name for check in ensemble.audit.flags}


def test_a_twin_by_its_address(tmp_path, monkeypatch, few_resamples):
    (tmp_path / "twin.py").write_text("def smooth(model):\n    return model.inner\n")
    monkeypatch.chdir(tmp_path)
    model = Rounded(load_model("vit_digits")).eval()
    data = load_data("digits", limit=24)
    stages = PGD, PGD | {"backward_of": "twin.py:smooth"}
    record = evaluate(model, data, protocol=protocol(tmp_path, *stages), name="rounded", audit=False, batch_size=24)
    by = record.outcomes["broken_by"].tolist()
    assert by.count("pgd") == 0
    assert by.count("pgd through twin.py:smooth") > 5
    assert record.spec.code["twin twin.py:smooth"]
    assert record.outcomes["forwards"].max() <= 1 + 11 + 21, "a gradient through the twin costs a second forward pass"
    assert record.outcomes["forwards"].max() > 1 + 11 + 11
    images, labels = data.tensors()
    with torch.no_grad():
        assert F.cross_entropy(model(images), labels) < 1
