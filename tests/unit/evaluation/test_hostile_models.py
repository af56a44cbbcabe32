"""Models that misbehave: each is refused in one line, or flagged in its record, or can do no harm."""

import logging
import os
import shlex
import subprocess
import sys
import traceback

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.early_exit import no_early_exit
from robustbench_kpca._core.errors import BadInputError, BenchmarkError, EvaluationError
from robustbench_kpca._engine.inference import guard
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.cli.main import main

pytestmark = pytest.mark.usefixtures("few_resamples")


class Linear(nn.Module):
    """An honest classifier of 8 x 8 images, and what the hostile ones are made of."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 64, generator=torch.Generator().manual_seed(0)))
        self.register_buffer("seen", torch.zeros(1))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.act(x, (x - 0.5).flatten(1) @ self.weight.T)

    def act(self, x, z):
        return z


MODELS = {}


def hostile(outcome, protocols=("clean", "pgd")):
    """Add a model whose `act` is the function; `outcome` is the error or flag that is expected, or None."""

    def add(act):
        MODELS[act.__name__] = (type(act.__name__, (Linear,), {"act": act}), outcome, protocols)
        return act

    return add


WROTE = (BadInputError, "wrote into the images that it was shown")
TWICE = (BadInputError, r"two forward passes on the same images differ by .* --allow stochastic")
MATES = (BadInputError, r"logits change by .* with the other images of its batch; .* --allow batch")
CHANGED = (EvaluationError, "the model changed while it was evaluated: the logits of the first images")
FAILED = (BadInputError, r"the model failed on images of shape \(16, 1, 8, 8\)")
SHAPE = (BadInputError, r"the model returned .*; expected one row of logits per image")
SETTING = (BadInputError, "the model changed torch's {}, on which all later numbers depend")


def setting(name):
    return BadInputError, SETTING[1].format(name)


@hostile(WROTE)
def rounds_in_place(self, x, z):
    x.mul_(255).round_().div_(255)
    return x.flatten(1) @ self.weight.T


@hostile(WROTE)
def writes_later(self, x, z):
    if self.calls > 3:
        x.detach().copy_(x.round())
    return z


@hostile(None)
def writes_behind_torch(self, x, z):
    x.data.zero_()  # unseen, but the images are a copy
    return z


@hostile(SHAPE)
def a_dictionary(self, x, z):
    return {"logits": z}


@hostile((BadInputError, r"the model returns one logit an image: \(16,\); .*at least two; return two, or wrap"))
def one_number_each(self, x, z):
    return z.sum(1)


@hostile((BadInputError, "has the label 9, but the model has 5 classes"))
def too_few_classes(self, x, z):
    return z[:, :5]


@hostile((BadInputError, "logits of 11 classes, and of 10 before"))
def growing_classes(self, x, z):
    return z if self.calls < 4 else torch.cat([z, z[:, :1]], 1)


@hostile((BadInputError, r"returned numbers of type torch.complex64; expected a dense tensor of floating"))
def complex_numbers(self, x, z):
    return torch.complex(z, z)


@hostile((BadInputError, r"returned a sparse tensor \(torch.sparse_coo\); expected a dense tensor"))
def sparse(self, x, z):
    return z.to_sparse()


@hostile((BadInputError, "returned a tensor on the device 'meta', which holds no numbers"))
def on_no_device(self, x, z):
    return z.to("meta")


@hostile((BadInputError, "returned a nested tensor; expected a dense tensor"))
def nested(self, x, z):
    return torch.nested.nested_tensor(list(z), layout=torch.jagged)


@hostile((BadInputError, "NaN or infinite logits on 16 of 16 clean images"))
def not_a_number(self, x, z):
    return z * float("nan")


@hostile((BadInputError, "NaN or infinite logits"))
def too_large_for_single_precision(self, x, z):
    return z.double() * 1e300


@hostile((BadInputError, r"cross-entropy of \d+ % of the labels is rounded to zero.*--allow vanishing-loss"), ("pgd",))
def huge(self, x, z):
    best = nn.functional.one_hot(self.truth, 10) if len(z) == len(self.truth) else 0
    return z + 1e6 * best


@hostile(None)
def one_memory_for_all_answers(self, x, z):
    if not hasattr(self, "memory"):
        self.memory = torch.zeros_like(z)
    return self.memory.copy_(z.detach()) if not z.requires_grad else z


@hostile(TWICE)
def draws_noise(self, x, z):
    return z + torch.rand_like(z)


@hostile(TWICE)
def counts_its_calls(self, x, z):
    return z + self.calls


@hostile(MATES)
def normalises_over_the_batch(self, x, z):
    return z - z.mean(0)


@hostile(CHANGED)
def drifts(self, x, z):
    return z if self.calls < 5 else z.roll(1, 1)


@hostile(CHANGED)
def changes_its_weights(self, x, z):
    if self.calls == 3:
        self.weight.data.neg_()
    return z


@hostile((EvaluationError, "the model changed while it was evaluated: the model switched to training mode"))
def begins_to_train(self, x, z):
    self.train(self.calls > 4)
    return z


@hostile("the model wrote into its own weights or buffers during the run: seen")
def remembers_in_a_buffer(self, x, z):
    self.seen.add_(1)
    return z


@hostile(FAILED)
def leaves(self, x, z):
    sys.exit(0)


@hostile(FAILED, ("pgd",))
def leaves_under_attack(self, x, z):
    if x.requires_grad or z.requires_grad:
        raise SystemExit
    return z


class Own(BaseException):
    pass


@hostile((BadInputError, r"the model failed .*\(Own: test_hostile_models.py, line "))
def raises_a_class_of_its_own(self, x, z):
    raise Own("mine")


def _through(backward):
    """Make a function that hands its input on, whose gradient `backward` computes."""
    methods = {"forward": staticmethod(lambda ctx, z: z.clone()), "backward": staticmethod(backward)}
    return type("_Through", (torch.autograd.Function,), methods).apply


def _leave(ctx, gradient):
    raise Own("mine")


@hostile((BadInputError, r"cannot be differentiated \(Own"), ("pgd",))
def raises_a_class_of_its_own_in_its_gradient(self, x, z):
    return _through(_leave)(z)


@hostile(FAILED)
def fails(self, x, z):
    raise ValueError("two\nlines")


@hostile((BadInputError, r"cannot be differentiated .*; give .*checkpoint use_reentrant=False"), ("pgd",))
def checkpoints_by_entering_again(self, x, z):
    return checkpoint(torch.clone, z, use_reentrant=True) if z.requires_grad else z


@hostile((EvaluationError, "an attack was given gradients that differ by 2"), ("pgd",))
def misleads_whoever_is_no_audit(self, x, z):
    audited = any("/audit/" in frame.f_code.co_filename for frame, _ in traceback.walk_stack(None))
    return z if audited else _through(lambda ctx, gradient: -gradient)(z)


@hostile((BadInputError, "cannot be differentiated"), ("pgd",))
def switches_gradients_off(self, x, z):
    torch.set_grad_enabled(False)
    return 1 * (x.flatten(1) @ self.weight.T)


@hostile(setting("default dtype"))
def changes_the_default_dtype(self, x, z):
    torch.set_default_dtype(torch.float64)
    return z


@hostile(setting("default device"))
def changes_the_default_device(self, x, z):
    torch.set_default_device("meta")
    return z


@hostile(setting("number of threads"))
def changes_the_threads(self, x, z):
    torch.set_num_threads(torch.get_num_threads() + 1)
    return z


@hostile(None)
def seeds_torch(self, x, z):
    torch.manual_seed(0)
    return z


@pytest.fixture(scope="module")
def data():
    images = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(4))
    return images, Linear()(images).detach().argmax(1)


def run(model, data, protocol, **options):
    images, labels = data
    if protocol == "pgd":
        options |= {"steps": 3, "eps": "2/255"}
    name = "clean" if protocol == "clean" else "pgd20-linf-8_255"
    model.truth = labels[:16]
    with torch.random.fork_rng():
        return evaluate(model.eval(), images, labels, protocol=name, audit=False, batch_size=16, name="m", **options)


CASES = [(name, protocol) for name, (_, _, protocols) in MODELS.items() for protocol in protocols]


@pytest.mark.parametrize(("name", "protocol"), CASES)
def test_a_hostile_model(name, protocol, data, tmp_path):
    make, outcome, _ = MODELS[name]
    images, settings = data[0].clone(), [torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()]
    if isinstance(outcome, tuple):
        with pytest.raises(BenchmarkError, match=outcome[1]) as caught:
            run(make(), data, protocol, out=tmp_path)
        assert isinstance(caught.value, outcome[0])
        assert "\n" not in str(caught.value)
        assert list(tmp_path.glob("*.record.json")) == []
    else:
        record = run(make(), data, protocol)
        if outcome is None:
            assert record.outcomes.digest() == run(Linear(), data, protocol).outcomes.digest()
        assert record.flags == (() if outcome is None else (outcome,))
    assert torch.equal(data[0], images)
    assert settings == [torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()]


def test_honest_and_noisy_models_have_the_passes_and_flags_of_their_record(data):
    model = Linear()
    record = run(model, data, "clean")
    assert record.passes.forwards == len(data[0])
    assert model.calls == 3 + 1 + 1  # three batches, of which the first is the probe; beside others before; again after
    assert record.flags == ()
    record = run(MODELS["draws_noise"][0](), data, "clean", allow=["stochastic"])
    assert record.flags[0].startswith("preflight, allowed: stochastic: two forward passes")
    assert record.flags[1].startswith("the logits of the first images changed by")


def test_drift_of_one_model_keeps_the_record_of_the_other(data, tmp_path):
    models = {"bad": MODELS["drifts"][0]().eval(), "good": Linear().eval()}
    with pytest.raises(EvaluationError, match="model 'bad': the model changed"):
        evaluate(models, *data, protocol="clean", batch_size=16, out=tmp_path)
    assert [path.name.split("__")[0] for path in tmp_path.glob("*.record.json")] == ["good"]


FACTORY = """
import sys
{outside}
def make():
    {inside}
"""


@pytest.mark.parametrize(
    ("outside", "inside", "code", "said"),
    [
        ("", "sys.exit(0)", 2, "factory 'leaving.py:make' failed (SystemExit: leaving.py, line "),
        ("sys.exit(0)", "pass", 2, "factory 'leaving.py:make' cannot be imported (SystemExit: leaving.py, line "),
        ("", "raise KeyboardInterrupt", 3, "interrupted"),
        ("", "import torch; m = torch.nn.Identity(); m.modules = sys.exit; return m", 3, "(SystemExit)"),
    ],
)
def test_a_factory_that_leaves_is_an_error(outside, inside, code, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaving.py").write_text(FACTORY.format(outside=outside, inside=inside))
    command = "eval --model leaving.py:make --data digits --limit 4 --protocol clean --out ."
    assert main(command.split()) == code
    *_, line = capsys.readouterr().err.splitlines()
    assert said in line


LEAVING = """
import atexit, ctypes, os, threading, torch

class Net(torch.nn.Module):
    def forward(self, x):
        {inside}
        return x.flatten(1)[:, :10]

def make():
    return Net()
"""
LEAVERS = {
    "os._exit(0)": 2,
    "os.execvp('true', ['true'])": 2,
    "threading.Thread(target=os._exit, args=[0]).start()": 0,  # the thread ends, the run does not
    "os.fork() or os._exit(0); os.wait()": 0,  # a process of its own
    "os._exit(7)": 7,
}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from Python 3.12
@pytest.mark.parametrize("inside", LEAVERS)
def test_a_model_that_ends_the_program_is_never_success(inside, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaving.py").write_text(LEAVING.format(inside=inside))
    leave = os._exit
    if not (child := os.fork()):  # what ends there does not end the tests
        with no_early_exit():
            leave(main(shlex.split("eval --model leaving.py:make --data digits --limit 4 --protocol clean --out runs")))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert (code, bool(list(tmp_path.glob("runs/*.record.json")))) == (LEAVERS[inside], LEAVERS[inside] == 0)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("import robustbench_kpca as rbk; rbk.evaluate('leaving.py:make', 'digits', protocol='clean')", 1),
        ("import os, robustbench_kpca as rbk; rbk.load_model('leaving.py:make'); os._exit(0)", 0),  # its own program
    ],
)
def test_a_program_that_a_model_ends_has_not_succeeded(call, code, tmp_path):
    (tmp_path / "leaving.py").write_text(LEAVING.format(inside="atexit.register(os._exit, 0); os._exit(0)"))
    words = shlex.split("eval --model leaving.py:make --data digits --limit 4 --protocol clean --out runs")
    ended = subprocess.run([sys.executable, "-c", call, *words], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == code
    assert ("the model failed" in ended.stderr) == (code > 0)


def test_a_class_of_its_own_that_is_raised_anywhere_is_one_line(monkeypatch, capsys):
    def leaving(*words, **options):
        raise Own("mine")

    monkeypatch.setattr("robustbench_kpca.cli.main.app", leaving)
    assert main(["list"]) == 3
    assert "left the program (Own)" in capsys.readouterr().err


def test_a_pass_that_takes_much_longer_is_warned_of_once(caplog):
    costs = guard.Costs()
    with caplog.at_level(logging.WARNING):
        for seconds in (0.1, 0.2, 0.05, 0.05, 3.9, 0.1, 4.2, 5.0):  # the first four are the measure
            costs.note(seconds)
    (told,) = caplog.messages
    assert told.startswith("warning: pass 7 of the model took 4.2 s, the first ones at most 0.2 s")


def test_memory_that_grows_is_warned_of_once(monkeypatch, caplog):
    assert guard.resident() > 2**20
    kept = []
    monkeypatch.setattr(guard, "resident", lambda: 2**30 + 2**27 * len(kept))
    model = type("Greedy", (Linear,), {"act": lambda self, x, z: kept.append(1) or z})()
    runner = Runner(model.eval(), 4, torch.device("cpu"))
    with caplog.at_level(logging.WARNING):
        for _ in range(40):
            runner.logits(torch.ones(4, 1, 8, 8))
    (told,) = caplog.messages
    assert "GiB in 16 passes of the model" in told


class Impostor(nn.Module):
    """Has the weights of a bundled network, and lets another one answer that no `state_dict` shows."""

    def __init__(self, shown, hidden):
        super().__init__()
        for name, module in shown.named_children():
            self.add_module(name, module)
        for name, parameter in shown.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name, tensor in shown.named_buffers(recurse=False):
            self.register_buffer(name, tensor, persistent=name not in shown._non_persistent_buffers_set)
        self.hidden = [hidden]

    def forward(self, x):
        return self.hidden[0](x)


@pytest.mark.parametrize(("name", "flagged"), [("vit_digits_adv", True), ("vit_digits", False)])
def test_another_network_behind_bundled_weights_is_flagged(name, flagged):
    model = Impostor(load_model("vit_digits"), load_model(name)).eval()
    record = evaluate(model, load_data("digits", limit=8), protocol="clean", audit=False, quiet=True)
    assert any("weights are those of vit_digits" in flag for flag in record.flags) == flagged


def test_a_hook_that_answers_by_another_network_is_flagged():
    model, other, data = load_model("vit_digits"), load_model("vit_digits_adv"), load_data("digits", limit=8)
    assert evaluate(model, data, protocol="clean", quiet=True).flags == ()
    model.register_forward_hook(lambda module, inputs, answer: other(*inputs))
    (flag,) = evaluate(model, data, protocol="clean", quiet=True).flags
    assert flag.startswith("the weights are those of vit_digits, but the answers are not")
