"""Attacks of other libraries: counted to the pass, verified, kept to themselves, and refused in one line."""

# ruff: noqa: NPY002 (the legacy generators must stay as they are)

import random
import re
import sys

import attack_checks
import numpy as np
import pytest
import torch
from attack_checks import Wavy, rand
from torch import nn

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError, EvaluationError, UnknownNameError
from robustbench_kpca._engine.attack_loop.counted_model import CountedModel, Counters
from robustbench_kpca._engine.inference.environment import environment
from robustbench_kpca.attacks import foreign as _foreign
from robustbench_kpca.attacks.foreign import build
from robustbench_kpca.attacks.shared import names
from robustbench_kpca.attacks.shared.names import library_names
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.tasks import task_named

SHAPE = (2, 6, 6)


def run(model, x, y, stage, norm="linf", eps=0.1, batch_size=4):
    chosen = attack_checks.scenario([{"restarts": 1} | stage], norm=norm, eps=eps)
    return attack_checks.attacked(model, x, y, chosen, batch_size)


def wavy(lead=0.0):
    return Wavy(SHAPE, lead=lead, dtype=torch.float32)


def images(n=5):
    return rand(3, n, *SHAPE, dtype=torch.float32), torch.zeros(n, dtype=torch.int64)


def counts(n):
    return Counters(*(torch.zeros(n, dtype=torch.int64) for _ in range(4)))


COSTS = {
    "torchattacks:PGD": ({"steps": 10}, 10, 10),
    "torchattacks:FGSM": ({}, 1, 1),
    "torchattacks:SPSA": ({"nb_iter": 3, "nb_sample": 4}, 24, 0),
    "foolbox:LinfPGD": ({"steps": 10}, 11, 10),  # it looks at what it returns
    "pyautoattack:apgd-ce": ({"n_iter": 10}, 12, 11),  # and this at what it is given
    "pyautoattack:square": ({"n_queries": 30}, 33, 0),  # before, after, and the first pattern
}


@pytest.mark.parametrize("name", COSTS)
def test_every_pass_is_counted(name):
    """Of samples that stand: what the attack spends, and the loop's forward pass."""
    pytest.importorskip(name.partition(":")[0])
    options, forwards, backwards = COSTS[name]
    x, y = images(5)
    samples = run(wavy(100.0), x, y, {"attack": name} | options, batch_size=8)
    assert {sample.broken_by for sample in samples} == {""}
    assert [sample.forwards for sample in samples] == [forwards + 1] * 5
    assert [sample.backwards for sample in samples] == [backwards] * 5


def test_shares_of_a_total_that_does_not_divide_add_up():
    tally = counts(4)
    forwards, backwards = tally.forwards, tally.backwards
    bare = CountedModel(lambda x: x.flatten(1), "test", tally, torch.tensor([0, 2, 3]))
    for size in (1, 5, 1):
        bare(torch.zeros(size, 1, 1, 2))
    assert forwards.tolist() == [3, 0, 2, 2]
    x = torch.ones(2, 1, 1, 2, requires_grad=True)
    out = bare(x)
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    assert forwards.tolist() == [3, 0, 3, 3]
    assert backwards.tolist() == [2, 0, 1, 1]


def test_the_network_is_out_of_reach():
    model = wavy()
    bare = CountedModel(lambda x: model(x), "test", counts(1), torch.zeros(1, dtype=torch.int64))
    bare.train()
    for parameter in bare.parameters():
        parameter.requires_grad_(True)
    assert not any(one is other for one in bare.parameters() for other in model.parameters())
    assert not any(module is model for module in bare.modules())


@pytest.mark.parametrize("name", ["torchattacks:CW", "foolbox:LinfPGD", "pyautoattack:fab-t"])
def test_generators_model_and_tracing_are_left_alone(name):
    pytest.importorskip(name.partition(":")[0])
    model, (x, y) = load_model("vit_digits"), load_data("digits", limit=8).tensors()
    norm = "l2" if name.endswith("CW") else "linf"
    options = {"n_iter": 2} if "fab" in name else {"steps": 2}
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    parameters = [(p.requires_grad, p.grad, p.clone()) for p in model.parameters()]
    with torch.inference_mode():
        samples = run(model, x, y, {"attack": name} | options, norm=norm, eps=0.03)
    assert len(samples) == 8
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    for parameter, (needed, grad, value) in zip(model.parameters(), parameters, strict=True):
        assert parameter.requires_grad == needed
        assert grad is None or parameter.grad is grad
        assert torch.equal(parameter, value)
    assert not any(module.training for module in model.modules())


def test_every_generator_is_seeded_and_put_back():
    """By hand, since the type checker of these tests draws from `random`."""
    draws = []
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    alone = _foreign.isolated.__wrapped__
    for _ in range(2):
        random.setstate(before[2])
        inside = alone(2**62 + 5, torch.device("cpu"))
        next(inside)
        draws.append((random.random(), np.random.rand(), float(torch.rand(1))))
        next(inside, None)
        assert random.getstate() == before[2]
    assert draws[0] == draws[1]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


class Blind(nn.Module):
    """Finite logits, with a gradient that is NaN (by `sqrt` at 0) or zero, or that saturates by `scale`."""

    def __init__(self, kind, scale=1.0, lead=0.0):
        super().__init__()
        self.inner, self.kind, self.scale = wavy(lead), kind, scale

    def forward(self, x):
        if self.kind == "nan":
            x = x + 0 * (0 * x).sqrt()
        return self.scale * (self.inner(x.detach() + 0 * x) if self.kind == "zero" else self.inner(x))


GRADIENTS = {
    "torchattacks:FGSM": {},
    "torchattacks:PGD": {"steps": 2},
    "torchattacks:CW": {"steps": 2},
    "foolbox:LinfPGD": {"steps": 2},
    "foolbox:L2CarliniWagnerAttack": {"steps": 2, "binary_search_steps": 2},
    "pyautoattack:apgd-ce": {"n_iter": 2},
    "pyautoattack:standard": {},
}


def norm_of(name):
    return "l2" if name.endswith(("CW", "WagnerAttack")) else "linf"


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_that_is_nan_is_an_error(name):
    pytest.importorskip(name.partition(":")[0])
    x, y = images(4)
    with pytest.raises(EvaluationError, match=f"gradient .*'{name}'"):
        run(Blind("nan", lead=100.0), x, y, {"attack": name} | GRADIENTS[name], norm=norm_of(name))


@pytest.mark.parametrize("name", ["torchattacks:PGD", "foolbox:LinfPGD", "pyautoattack:apgd-ce"])
def test_gradients_of_zero_are_counted(name):
    pytest.importorskip(name.partition(":")[0])
    x, y = images(4)
    stage = {"attack": name} | GRADIENTS[name]
    for model in (Blind("zero", lead=100.0), Blind("saturated", scale=1e6, lead=100.0)):
        samples = run(model, x, y, stage)
        assert {sample.broken_by for sample in samples} == {""}
        assert [sample.zero_gradients for sample in samples] == [sample.backwards for sample in samples]
    assert [sample.zero_gradients for sample in run(wavy(20.0), x, y, stage)] == [0] * 4


@pytest.mark.parametrize("name", ["torchattacks:CW", "foolbox:L2CarliniWagnerAttack"])
def test_a_loss_that_is_content_is_not_blind(name):
    """A constant so large that the hinge is met, and its slope zero."""
    pytest.importorskip(name.partition(":")[0])
    x, y = images(4)
    options = {"c": 1e3} if name.endswith("CW") else {"initial_const": 1e3, "binary_search_steps": 1}
    samples = run(wavy(), x, y, {"attack": name, "steps": 20} | options, norm="l2", eps=3.0)
    assert any(sample.broken_by == name for sample in samples)
    assert [sample.zero_gradients for sample in samples] == [0] * 4


def test_what_is_seen_in_a_batch_of_all_samples_is_theirs_and_spread_in_another():
    tally = counts(4)
    bare = CountedModel(lambda x: x.flatten(1), "test", tally, torch.tensor([0, 2, 3]))
    x = torch.tensor([[1.0, 2.0], [torch.inf, 0.0], [0.0, torch.nan]])[:, None, None]
    bare(x)
    assert tally.nonfinite.tolist() == [0, 0, 1, 1]
    bare(torch.cat([x, x]))
    assert tally.nonfinite.tolist() == [2, 0, 2, 2]
    flat = CountedModel(lambda x: x.detach() + torch.tensor([1.0, 0, 0])[:, None] * x, "test", tally, torch.arange(3))
    x = torch.zeros(3, 2, requires_grad=True)
    out = flat(x)
    out.sum().backward(retain_graph=True)
    assert tally.zero_gradients.tolist() == [0, 1, 1, 0]
    out[:2].sum().backward()
    assert tally.zero_gradients.tolist() == [0, 2, 1, 0], "nobody asked about the third"


def test_infinite_logits_under_another_attack_are_counted_and_their_gradient_is_no_error():
    pytest.importorskip("torchattacks")

    class Overflow(nn.Module):
        def forward(self, x):
            bright = x.flatten(1).mean(1)
            return torch.stack([bright + 1, bright / (bright < 0.52)], 1)

    samples = run(Overflow(), HALF, ZEROS, {"attack": "torchattacks:PGD", "steps": 3, "random_start": False})
    assert all(sample.nonfinite for sample in samples)


@pytest.mark.parametrize("way", ["swallowed", "wrapped"])
def test_an_error_that_a_library_keeps_to_itself_comes_through(monkeypatch, way):
    def look(model, x, y, threat, seed, options):
        x = x.requires_grad_()
        try:
            model(x).sum().backward()
        except Exception:  # noqa: BLE001 (as libraries do)
            if way == "wrapped":
                raise RuntimeError("something went wrong") from None
        return x

    library = _Library(bounded=True)
    library.recipe = lambda module, name: _foreign.Recipe({}, ("linf",), True, look)
    monkeypatch.setitem(_foreign.LIBRARIES, "fake", library)
    monkeypatch.setitem(names._FILES, "fake", names.AUTOATTACK)
    monkeypatch.setitem(sys.modules, "fake", sys)
    with pytest.raises(EvaluationError, match=r"gradient .*4 of 4 .*'fake:Push'"):
        run(Blind("nan", lead=100.0), *images(4), {"attack": "fake:Push"})


class _Library:
    """A library of one attack, `Push`, that adds `by` to every pixel."""

    def __init__(self, bounded):
        self.bounded = bounded

    def names(self, module):
        return ["Push"]

    def recipe(self, module, name):
        def push(model, x, y, threat, seed, options):
            print("prints are kept")
            sys.settrace(lambda *_: None)
            random.random(), np.random.rand(), torch.rand(1)
            return [x] + 1 if options["by"] == -1 else x + _NUMBERS.get(options["by"], options["by"])

        return _foreign.Recipe({"by": 0.0}, ("linf",), self.bounded, push)


_NUMBERS = {1000.0: float("nan"), 2000.0: float("inf")}  # which no protocol may state


@pytest.fixture
def library(monkeypatch):
    def install(*, bounded):
        monkeypatch.setitem(_foreign.LIBRARIES, "fake", _Library(bounded))
        monkeypatch.setitem(names._FILES, "fake", names.AUTOATTACK)
        monkeypatch.setitem(sys.modules, "fake", sys)

    return install


class _Bright(nn.Module):
    def forward(self, x):
        return torch.stack([0 * x.flatten(1).sum(1), x.flatten(1).mean(1) - 0.52], 1)


HALF = torch.full((3, 1, 2, 2), 0.5)
ZEROS = torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize("bounded", [True, False])
def test_what_is_returned_is_verified(library, capsys, bounded):
    library(bounded=bounded)
    broken, stands = (run(_Bright(), HALF, ZEROS, {"attack": "fake:Push", "by": by}, eps=0.05) for by in (0.05, 0.01))
    assert [sample.broken_by for sample in broken] == ["fake:Push"] * 3
    assert [sample.broken_by for sample in stands] == [""] * 3
    assert [sample.forwards for sample in broken] == [1] * 3
    rounded = run(_Bright(), HALF, ZEROS, {"attack": "fake:Push", "by": 0.05 + 5e-7}, eps=0.05)
    assert rounded[0].broken_by == "fake:Push"
    assert sys.gettrace() is None or "settrace" not in repr(sys.gettrace())
    assert capsys.readouterr().out == ""


def test_images_outside_the_ball_and_failures_of_a_library(library):
    stage = {"attack": "fake:Push", "by": 0.06}
    library(bounded=True)
    with pytest.raises(EvaluationError, match=r"'fake:Push' .*3 of 3 .*0\.06\b"):
        run(_Bright(), HALF, ZEROS, stage, eps=0.05)
    library(bounded=False)
    samples = run(_Bright(), HALF, ZEROS, stage, eps=0.05)
    assert [sample.broken_by for sample in samples] == [""] * 3
    assert torch.equal(samples[0].worst, HALF[0])
    library(bounded=True)
    with pytest.raises(EvaluationError, match=r"'fake:Push' .*TypeError"):
        run(_Bright(), HALF, ZEROS, {"attack": "fake:Push", "by": -1.0})


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("by", [0.6, -0.6, 1000.0, 2000.0])
def test_an_image_outside_the_box_or_nan_is_an_error(library, by, bounded):
    library(bounded=bounded)
    with pytest.raises(EvaluationError, match=r"3 of 3 .*\[0, 1\]"):
        run(_Bright(), HALF, ZEROS, {"attack": "fake:Push", "by": by}, eps=0.05)


@pytest.mark.parametrize("library", _foreign.LIBRARIES)
def test_names_are_known_without_importing_a_library(library):
    """Its files name at least what the library itself has."""
    pytest.importorskip(library)
    known = _foreign.LIBRARIES[library].names(_foreign.load(library, library))
    assert set(known) <= set(library_names(library))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (AssertionError(), "failed .AssertionError."),
        (ModuleNotFoundError("No module named 'numba'", name="numba"), "pip install numba"),
        (ImportError(), "failed .ImportError."),
    ],
)
def test_a_failure_says_what_is_missing(error, message):
    assert re.search(message, str(_foreign._failure("fake:Push", error)))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("torchattack:PGD", {}, "did you mean 'torchattacks'"),
        ("torchattacks:MultiAttack", {}, "'MultiAttack'"),
        ("foolbox:DDNAttak", {}, "did you mean 'DDNAttack'"),
        ("torchattacks:PGD", {"stpes": 3}, "'stpes'.*did you mean 'steps'"),
        ("torchattacks:PGD", {"eps": 0.1}, "'eps'"),
        ("torchattacks:PGD", {"steps": True}, "steps = true; expected a number"),
        ("pyautoattack:standard", {"n_iter": 3}, "'n_iter'"),
        ("pyautoattack:square", {"queries": 3}, "'queries'.*did you mean 'n_queries'"),
        ("foolbox:DDNAttack", {"distance": 3}, "'distance'"),
    ],
)
def test_unknown_names_and_options(name, options, message):
    if name.partition(":")[0] in _foreign.LIBRARIES:
        pytest.importorskip(name.partition(":")[0])
    with pytest.raises((BadInputError, UnknownNameError), match=message):
        build(name, options)


@pytest.mark.parametrize(
    ("name", "norm", "known"),
    [("torchattacks:CW", "linf", "l2"), ("foolbox:DDNAttack", "l1", "l2"), ("torchattacks:APGD", "l1", "linf or l2")],
)
def test_a_norm_that_an_attack_does_not_search_in_is_refused(name, norm, known):
    pytest.importorskip(name.partition(":")[0])
    with pytest.raises(BadInputError, match=f"{known}$"):
        build(name, {}).start(HALF, ZEROS, Threat(norm, 0.1), torch.arange(3))


def test_open_boxes_and_labels_per_pixel_are_refused():
    pytest.importorskip("torchattacks")
    attack = build("torchattacks:PGD", {})
    with pytest.raises(BadInputError, match="'torchattacks:PGD'"):
        attack.start(HALF, ZEROS, Threat("linf", 0.1, clip=False), torch.arange(3))
    protocol = attack_checks.scenario([], policy="strongest")
    with pytest.raises(BadInputError, match="'torchattacks:PGD'"):
        task_named("segmentation").compute.success.check_protocol(protocol, {"torchattacks:PGD": attack})


@pytest.mark.parametrize("library", sorted(_foreign.LIBRARIES))
def test_every_attack_of_a_library_is_read(library):
    module = pytest.importorskip(library)
    names = _foreign.LIBRARIES[library].names(module)
    assert len(names) >= 9
    for name in names:
        recipe = _foreign.LIBRARIES[library].recipe(module, name)
        assert recipe.norms
        assert not {"eps", "model", "predict", "self"} & set(recipe.options)


def test_the_record_says_which_attack_and_which_version(tmp_path):
    pytest.importorskip("torchattacks")
    lines = ['alpha = "0.25 eps"', "steps = 2"]
    stage = "\n".join(["[[stage]]", 'attack = "torchattacks:DIFGSM"', "restarts = 1", *lines])
    (tmp_path / "difgsm.toml").write_text(attack_checks.USUAL + stage)
    record = evaluate(
        load_model("fan_digits"), "digits", protocol=str(tmp_path / "difgsm.toml"), eps="16/255", audit=False
    )
    assert record.spec.protocol.resolved["stage"] == [
        {"attack": "torchattacks:DIFGSM", "restarts": 1, "options": {"alpha": "0.25 eps", "steps": 2}}
    ]
    assert record.environment.packages["torchattacks"] == environment(torch.device("cpu")).packages["torchattacks"]
    assert "torchattacks:DIFGSM" in set(record.outcomes["broken_by"])
