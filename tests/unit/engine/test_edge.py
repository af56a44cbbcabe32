"""The edge of the box: a model without slopes at exactly 0 and 1 is attacked as if it had them; no other one changes.

The model is linear, so that the samples that can be broken in the box are known. Hardtanh has slope 0 at its bounds in
every version of torch; clamp has 1 before 2.14, and 0 since. Both are tested, whichever is installed.
"""

from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from stand_ins import Here
from torch import nn

from robustbench_kpca import attack, evaluate, load_data, load_model, perturb
from robustbench_kpca._core.errors import EvaluationError
from robustbench_kpca._engine.inference.edge import NUDGE, gradients_inside, inside
from robustbench_kpca._engine.inference.runner import ANY_LOGITS, Runner
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.audit.preflight import AT_EDGE, at_edge
from robustbench_kpca.audit.run import audit
from robustbench_kpca.data.forms import PICTURES, SIGNALS, WORDS
from robustbench_kpca.evaluation.execute import execute
from robustbench_kpca.models import bundled
from robustbench_kpca.verification.conformance.attention import _built, _run, _tokens

pytestmark = pytest.mark.usefixtures("few_resamples")
CPU = torch.device("cpu")
EPS = 0.1


class Powers(nn.Module):
    def __init__(self, exponent):
        super().__init__()
        self.exponent = exponent

    def forward(self, x):
        return x**self.exponent


class Relu6(nn.Module):
    def forward(self, x):
        return nn.functional.relu6(6 * x) / 6


class Absolute(nn.Module):
    def forward(self, x):
        return x.abs()


BLIND = {"hardtanh": nn.Hardtanh(0, 1), "relu": nn.ReLU(), "relu6": Relu6(), "abs": Absolute()}


def behind(first):
    """Return first, then a linear classifier of two classes."""
    weights = torch.rand(64, generator=torch.Generator().manual_seed(1)) - 0.5
    linear = nn.utils.skip_init(nn.Linear, 64, 2, bias=False)
    linear.weight.data = torch.stack([-weights, weights])
    return nn.Sequential(first, nn.Flatten(), linear).eval()


@pytest.fixture(scope="module")
def data():
    """Images of which half the values are at the edge, and which of them can be broken: x' = x - eps sign(w), cut."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, 1, 8, 8, generator=generator)
    x = torch.where(torch.rand(x.shape, generator=generator) < 0.5, x.round(), x)
    plain = behind(nn.Identity())
    y = plain(x).argmax(1)
    down = (2 * y - 1)[:, None] * plain[2].weight[1].detach().sign()
    worst = (x - EPS * down.view_as(x)).clamp(0, 1)
    breakable = plain(worst).argmax(1) != y
    assert 10 < int(breakable.sum()) < 30
    return x, y, breakable, worst


@pytest.mark.parametrize("first", BLIND)
def test_blind_models_are_known_and_gradients_are_taken_inside(first, data, caplog):
    x, y, breakable, _ = data
    found = attack(behind(BLIND[first]), x, y, "fgsm-linf-8_255", eps=EPS)
    assert torch.equal(found.broken, breakable)
    assert AT_EDGE in caplog.text


class Clamped(torch.autograd.Function):
    """`clamp` with a stated slope at its bounds."""

    @staticmethod
    def forward(ctx, x, low, high, slope):
        made = torch.clip(x, low, high)
        inside = (x > (-torch.inf if low is None else low)) & (x < (torch.inf if high is None else high))
        ctx.save_for_backward(inside + slope * ~inside * (made == x))
        return made

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None, None, None


@contextmanager
def slope_of_clamp(slope):
    def clamp(x, min=None, max=None):  # noqa: A002
        return Clamped.apply(x, min, max, slope)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "clamp", clamp)
        patch.setattr(torch.Tensor, "clamp_min", clamp)
        yield


class Clamp(nn.Module):
    def forward(self, x):
        return x.clamp(0, 1)


@pytest.mark.parametrize("slope", [0, 1])
def test_attacks_break_the_same_whatever_slope_clamp_has(slope, data, caplog):
    x, y, breakable, _ = data
    with slope_of_clamp(slope):
        found = attack(behind(Clamp()), x, y, "fgsm-linf-8_255", eps=EPS)
    assert torch.equal(found.broken, breakable)
    assert (AT_EDGE in caplog.text) == (slope == 0)


@pytest.mark.parametrize("name", ATTENTIONS.names())
def test_gradients_of_attention_do_not_depend_on_the_slope_of_clamp(name):
    """Only `robust_kde` meets a bound: the distance of a token from itself, which is 0 wherever the token moves."""
    layer = _built(ATTENTIONS.get(name), {})
    for tokens in (_tokens(), _tokens()[:, :1].expand_as(_tokens())):
        gradients = []
        for slope in (0, 1):
            x = tokens.detach().clone().requires_grad_()
            with slope_of_clamp(slope):
                gradients += torch.autograd.grad(_run(layer, x).square().sum(), x)
        assert torch.allclose(*gradients, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "protocol", ["pgd20-linf-8_255", "apgd-ce-linf-8_255", "apgd-t-linf-8_255", "fab-t-linf-8_255"]
)
def test_every_attack_breaks_what_can_be_broken(protocol, data):
    x, y, breakable, _ = data
    found = attack(behind(nn.Hardtanh(0, 1)), x, y, protocol, eps=EPS)
    expected = attack(behind(nn.Identity()), x, y, protocol, eps=EPS)
    assert torch.equal(found.broken, expected.broken)
    assert int((found.broken ^ breakable).sum()) <= 1  # one sample is broken by a hair


def test_attacks_of_other_libraries_see_the_same_gradients(data, tmp_path):
    pytest.importorskip("torchattacks")
    toml = (Path(__file__).parents[3] / "attacks" / "fgsm-linf-8_255.toml").read_text()
    assert toml.count('attack = "fgsm"') == 1
    (tmp_path / "foreign.toml").write_text(toml.replace('attack = "fgsm"', 'attack = "torchattacks:FGSM"'))
    x, y, breakable, _ = data
    found = attack(behind(nn.Hardtanh(0, 1)), x, y, tmp_path / "foreign.toml", eps=EPS)
    assert torch.equal(found.broken, breakable)


def test_a_training_loop_gets_the_same_images(data):
    x, y, _, worst = data
    model, passes = behind(nn.Hardtanh(0, 1)), []
    model.register_forward_hook(lambda *_: passes.append(1))
    assert torch.allclose(perturb(model, x, y, "fgsm-linf-8_255", eps=EPS), worst)
    plain = behind(nn.Identity())
    plain.register_forward_hook(lambda *_: passes.append(-1))
    passes.clear()
    perturb(plain, x, y, "fgsm-linf-8_255", eps=EPS)
    assert passes == [-1]


def test_the_record_says_so_whoever_makes_it(data, monkeypatch):
    x, y, breakable, _ = data
    model = behind(nn.Hardtanh(0, 1))
    how = {"protocol": "pgd20-linf-8_255", "steps": 3, "eps": str(EPS), "audit": False, "quiet": True}
    record = evaluate(model, x, y, **how, batch_size=8)
    assert record.flags == (AT_EDGE,)
    with monkeypatch.context() as patch:
        patch.setattr(
            "robustbench_kpca.evaluation.api.execute", lambda *given: execute(*given, lambda _: nullcontext(Here()))
        )
        divided = evaluate(model, x, y, **how, batch_size=8)
    assert divided.flags == (AT_EDGE,)
    assert divided.outcomes.digest() == record.outcomes.digest()
    plain = evaluate(behind(nn.Identity()), x, y, **how, batch_size=8)
    assert plain.flags == ()
    assert plain.metrics["robust_accuracy"] == record.metrics["robust_accuracy"]
    assert record.metrics["robust_accuracy"].value < 1 - float(breakable.float().mean()) + 0.1


def test_nothing_is_said_where_nothing_is_blind(data):
    how = {"eps": str(EPS), "audit": False, "quiet": True}
    record = evaluate(behind(nn.ReLU()), *data[:2], protocol="noise-linf-8_255", **how)
    assert record.flags == ()
    images, _ = load_data("digits", limit=16).tensors()
    for name in (name for name in bundled() if "_digits" in name):
        runner = Runner(load_model(name), 16, CPU)
        assert at_edge(runner, images, PICTURES) == [], name
        assert runner.presentation is ANY_LOGITS


def test_an_audit_attacks_inside_and_says_so(data):
    x, y, *_ = data
    done = audit(behind(nn.Hardtanh(0, 1)), x, y, eps=EPS, level="quick", quiet=True)
    plain = audit(behind(nn.Identity()), x, y, eps=EPS, level="quick", quiet=True)
    assert AT_EDGE in done.checks[0].saw
    assert AT_EDGE not in plain.checks[0].saw
    assert [check.flag for check in done.checks] == [check.flag for check in plain.checks]


def blind(model, x, form=PICTURES):
    return bool(at_edge(Runner(model.eval(), len(x), CPU), x, form))


def test_blind_is_who_has_a_slope_just_inside_only(data):
    """Nor is a model that pays no attention to some pixels, or whose gradients are not numbers."""
    x = data[0]
    assert blind(behind(nn.ReLU()), x)
    assert blind(behind(nn.Hardtanh(0, 1)), x.clamp(0.2, 0.8))  # attacks put pixels of any image on the edge
    assert not blind(behind(nn.ReLU()), x, SIGNALS)
    assert not blind(behind(nn.ReLU()), x, WORDS)
    partly = behind(nn.Identity())
    partly[2].weight.data[:, ::2] = 0
    with torch.random.fork_rng():
        convolution = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    for model in (partly, convolution, behind(Powers(0.5)), behind(Powers(0.0))):
        assert not blind(model, x)


def test_nudges_move_what_is_at_the_edge_and_nan_is_refused_as_before(data):
    x = torch.tensor([[[[0, NUDGE / 2, 0.3, 1 - NUDGE / 2, 1, 1.5, -0.5]]]])
    assert torch.allclose(inside(x), torch.tensor([[[[NUDGE, NUDGE, 0.3, 1 - NUDGE, 1 - NUDGE, 1.5, -0.5]]]]), atol=0)
    with pytest.raises(EvaluationError, match="the gradient is NaN or infinite"):
        attack(behind(Powers(0.5)), *data[:2], "fgsm-linf-8_255", eps=EPS)


class Noisy(nn.Module):
    def forward(self, x):
        return (nn.functional.hardtanh(x, 0, 1) * torch.randn(x.shape)).flatten(1)


def test_both_passes_draw_the_same_noise():
    x = torch.tensor([[[[0.0, 1.0, 0.5]]]], requires_grad=True)
    with torch.random.fork_rng():
        answers = gradients_inside(ANY_LOGITS).show(Noisy(), x)
    (slopes,) = torch.autograd.grad(answers.sum(), x)
    with torch.random.fork_rng():
        noise = torch.randn(x.shape)
    assert torch.equal(answers, (x * noise).flatten(1))
    assert torch.equal(slopes, noise)
