"""`rbk doctor`: members that keep their promises pass; of those that do not, the broken one is named in plain words."""

import pytest

from robustbench_kpca.cli.main import main
from robustbench_kpca.verification.conformance import attack as conformance_of_attacks
from robustbench_kpca.verification.conformance import check_member

CODE = """
import numpy as np
import torch
from robustbench_kpca import MultiHeadAttention, corruption, metric, one_gradient, whole_attack

def up(x, state, change):
    return x + 0.25 * state["eps"] * change

steps = one_gradient(steps=3)

@steps
def climb(x, gradient, state):
    return up(x, state, gradient.sign())

@steps
def drunk(x, gradient, state):
    return up(x, state, torch.randn_like(x))

@steps
def herd(x, gradient, state):
    return up(x, state, gradient.mean(0, keepdim=True).sign())

class Rude:
    def start(self, x, y, threat, keys):
        return {"x": x, "finished": torch.zeros_like(keys, dtype=torch.bool)}

    def step(self, state, threat, query):
        query.logits(state["x"])
        return {"x": state["x"], "finished": torch.ones_like(state["finished"])}

class Far(Rude):
    def step(self, state, threat, query):
        return super().step(state | {"x": (state["x"] + 2 * threat.eps).clamp(0, 1)}, threat, query)

class Writing(Rude):
    def step(self, state, threat, query):
        state["finished"][:] = True
        return super().step(state, threat, query)

class Endless(Rude):
    def step(self, state, threat, query):
        return state

class Whole(Rude):
    def start(self, x, y, threat, keys):
        return super().start(x, y, threat, keys) | {"spent": torch.zeros(1)}

class Remembering(Rude):
    taken = 0

    def start(self, x, y, threat, keys):
        self.taken = 0
        return super().start(x, y, threat, keys) | {"value": x.new_zeros(len(x))}

    def step(self, state, threat, query):
        self.taken += 1
        value = state["value"] + self.taken
        return state | {"value": value, "finished": value >= 3}

class Dear(Rude):
    most_passes = ("0", "0")

for kind in (Rude, Far, Writing, Endless, Whole, Remembering, Dear):
    globals()[kind.__name__] = __import__("dataclasses").dataclass(kind)

@whole_attack()
def outside(model, x, y, eps):
    return (x + 2 * eps).clamp(0, 1)

@corruption
def grain(image, severity, rng):
    return np.clip(image + rng.normal(0, 4 * severity, image.shape), 0, 255).astype(np.uint8)

@corruption
def floats(image, severity, rng):
    return image / 2

@corruption
def writing(image, severity, rng):
    image += 1
    return image

@corruption
def nothing(image, severity, rng):
    return image.copy()

@corruption
def clock(image, severity, rng):
    return (image + np.random.randint(0, 9, image.shape)).astype(np.uint8)

class Cosine(MultiHeadAttention):
    def attend(self, q, k, v):
        q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
        return (q @ k.mT).softmax(-1) @ v

class Leaking(MultiHeadAttention):
    def attend(self, q, k, v, *, causal=False, mask=None):
        return (q @ k.mT).softmax(-1) @ v

class Batch(MultiHeadAttention):
    def attend(self, q, k, v):
        return (q @ k.mT).softmax(-1) @ (v - v.mean(0, keepdim=True))

class Cut(MultiHeadAttention):
    def attend(self, q, k, v):
        return (q @ k.mT).softmax(-1).detach() @ v.detach()

class Infinite(MultiHeadAttention):
    def attend(self, q, k, v):
        weights = (40 * q @ k.mT).exp()
        return weights / weights.sum(-1, keepdim=True) @ v

class Drawing(MultiHeadAttention):
    def attend(self, q, k, v):
        return v + torch.randn_like(v)

@metric(kinds=["clean", "attack"])
def wrong(outcomes):
    return outcomes["prediction"] != outcomes["label"]

@metric(kinds=["clean"])
def ratio(outcomes):
    with np.errstate(divide="ignore"):
        return 1 / (outcomes["prediction"] != outcomes["label"])

@metric(kinds=["clean"])
def beyond(outcomes):
    return 2.0 + outcomes["prediction"]

@metric(kinds=["clean"])
def first(outcomes):
    return np.arange(len(outcomes)) * outcomes["prediction"] / 100

def plain(x):
    return x
"""
PLUGIN = "robustbench_kpca.pytest_plugin"
BALL = "it stays in ball and box, and its state is one row a sample"
GOOD = ["climb", "Rude", "grain", "Cosine", "wrong"]
BAD = [
    ("drunk", "it is determined by its seed (linf)", "draws from a global generator"),
    ("herd", "a sample does not depend on others, nor on their order (l2)", "the samples beside it"),
    ("Far", f"{BALL} (linf)", "proposed a distance of 0.1"),
    ("Writing", f"{BALL} (linf)", "wrote into 'finished' of the old state"),
    ("Endless", f"{BALL} (l1)", "not finished after 400 steps"),
    ("Whole", f"{BALL} (l1)", "'spent' of its state has (1,) for 6"),
    ("Remembering", "it can be resumed (linf)", "it remembers outside its state"),
    ("Dear", "it costs no more passes than it says (linf)", "`most_passes` says (0, 0)"),
    ("outside", f"{BALL} (linf)", "at a distance of 0.1"),
    ("floats", "images keep shape and type, and the input is left as it is (cifar_c)", "float64, not uint8"),
    ("writing", "images keep shape and type, and the input is left as it is (cifar_c)", "wrote into the image"),
    ("nothing", "it does something (imagenet_c)", "stays as it is"),
    ("clock", "it is determined by its seed (imagecorruptions)", "the same seed made two images"),
    ("Leaking", "no token sees later ones, where they are hidden", "token 1 sees the next one"),
    ("Leaking", "padding changes nothing, where it is hidden", "changes the others"),
    ("Batch", "a sample does not depend on others", "depends on the others of its batch"),
    ("Cut", "gradients reach the input", "fails"),
    ("Infinite", "tokens keep their shape and are finite", "of size 30 gave numbers that are not finite"),
    ("Drawing", "the same tokens give the same", "let it say stochastic = True"),
    ("ratio", "it has a finite value inside its interval (clean)", "it is inf"),
    ("beyond", "it has a finite value inside its interval (clean)", "a share lies in [0, 1]"),
    ("first", "the order of samples does not matter (clean)", "in the other order"),
]
pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)


@pytest.mark.parametrize("name", GOOD)
def test_what_keeps_its_promises_passes(mine, name, capsys):
    assert main(["doctor", f"mine.py:{name}"]) == 0
    assert "FAILED" not in capsys.readouterr().out


@pytest.mark.parametrize(("name", "promise", "seen"), BAD)
def test_a_broken_promise_is_named(mine, monkeypatch, name, promise, seen):
    monkeypatch.setattr(conformance_of_attacks, "MOST", 400)
    broken = {finding.promise: finding.broken for finding in check_member(f"mine.py:{name}")}
    assert seen in broken[promise]


def test_the_command_says_what_failed_and_ends_with_1(mine, capsys):
    assert main(["doctor", "mine.py:drunk"]) == 1
    assert "draws from a global generator" in " ".join(capsys.readouterr().out.split())
    assert main(["doctor", "mine.py:herd", "--set", "steps=1"]) == 1


@pytest.mark.parametrize("name", ["fog", "rpc"])
def test_members_of_the_package_are_asked_by_name(name):
    assert main(["doctor", name]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mine.py:plain"], "make it one: one_gradient"),
        (["mine.py:CODE"], "mine.py defines no CODE"),
        (["absent.py:plain"], "no file absent.py"),
        (["no_such"], "no attack, corruption, attention or metric named 'no_such'"),
        (["pgd"], "'steps'"),
        (["hotflip"], "replaces words"),
        (["mine.py:climb", "--set", "stepz=3"], "stepz"),
        (["mine.py:grain", "--set", "steps=3"], "options of an attack or an attention only"),
        (["mine.py:Cosine", "--set", "rank=3"], "cannot be built"),
        (["miou"], "a metric of classification"),
    ],
)
def test_what_cannot_be_checked_is_refused(mine, words, said, capsys):
    assert main(["doctor", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_fixture_fails_a_test_with_the_promise(pytester):
    pytester.makepyfile(mine=CODE)
    pytester.makepyfile(
        """
        from mine import climb, herd

        def test_good(check_member):
            check_member(climb, steps=2)

        def test_bad(check_member):
            check_member(herd)
        """
    )
    done = pytester.runpytest_inprocess("-p", PLUGIN, "-p", "no:xdist")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*a sample does not depend on others*the samples beside it*"])
