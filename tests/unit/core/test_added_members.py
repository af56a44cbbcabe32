"""Members of families that a program adds from a file of its own, and what a record says of their code."""

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from stand_ins import attack_protocol, corruption_protocol

from robustbench_kpca import evaluate, load_model
from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._engine.attack_loop.passes import most_passes
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.corruptions import CORRUPTIONS
from robustbench_kpca.data.given import as_dataset
from robustbench_kpca.evaluation.evaluation import Evaluation
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.requests import NamedModel
from robustbench_kpca.evaluation.worker import Work, subject_of
from robustbench_kpca.metrics import METRICS, PERCENT, Mean
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records.record import find_records, load_record

ATTACK = '''
"""One step up."""
from dataclasses import dataclass
import torch
STRENGTH = 1.0

@dataclass(frozen=True)
class OneStep:
    """Move every pixel up."""

    def start(self, x, y, threat, keys):
        return {"x": x, "finished": torch.zeros(len(x), dtype=torch.bool)}

    def step(self, state, threat, query):
        # the box ends at 1
        x = (state["x"] + STRENGTH * threat.eps).clamp(0, 1)
        query.logits(x)
        return state | {"x": x, "finished": torch.ones(len(x), dtype=torch.bool)}
'''
PROTOCOL = attack_protocol("One step", "one-step")


GREYS = torch.linspace(0, 1, 192).view(4, 3, 4, 4)


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def module(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
        names.append(name)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield module
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def attacked(module, tmp_path, monkeypatch, linear):
    """Evaluate under an added attack whose file has this text; every picture is 4/255 below the threshold."""
    (tmp_path / "one-step.toml").write_text(PROTOCOL)
    x = torch.full((6, 3, 4, 4), 0.5)
    model = linear(torch.ones(48), -48 * (0.5 + 4 / 255)).eval()

    def attacked(text=ATTACK, **how):
        monkeypatch.setitem(ATTACKS.added, "one-step", module("my_attack", text).OneStep)
        labels, protocol = torch.zeros(6, dtype=torch.int64), str(tmp_path / "one-step.toml")
        return evaluate(model, x, labels, protocol=protocol, audit=False, out=tmp_path / "runs", **how)

    return attacked


def test_an_attack_that_does_not_say_what_it_costs_is_run_and_not_estimated(attacked, tmp_path):
    told = []
    record = attacked(progress=lambda done, total, /, **news: told.append((done, total, news)))
    assert record.metrics["robust_accuracy"].value == 0
    assert record.passes.forwards > 0
    assert told[-1][:2] == (6, 6)
    assert not any(news.get("left") or news.get("passes") for _, _, news in told)
    assert most_passes(load_scenario(str(tmp_path / "one-step.toml"))[1], 2) is None


def robust(record):
    return record.metrics["robust_accuracy"].value


def test_another_code_of_an_added_attack_makes_a_new_record_once_it_is_loaded(attacked, tmp_path, linear):
    weak = ATTACK.replace("STRENGTH = 1.0", "STRENGTH = 0.1")
    assert robust(attacked(weak)) == 1
    assert robust(attacked(ATTACK)) == 0
    assert len(find_records(tmp_path / "runs")) == 2
    assert robust(attacked(weak)) == 1  # the first is still there
    said = attacked(ATTACK).spec
    assert list(said.code) == ["attack one-step", "model"]
    assert "attack one-step" not in attacked(ATTACK).algorithms
    first = attacked(ATTACK)
    (tmp_path / "my_attack.py").write_text(ATTACK.replace("STRENGTH = 1.0", "STRENGTH = 0.1"))
    model, protocol = linear(torch.ones(48), -24.0).eval(), str(tmp_path / "one-step.toml")
    again = evaluate(model, torch.full((2, 3, 4, 4), 0.5), [0, 1], protocol=protocol, audit=False)
    assert again.spec.code["attack one-step"] == first.spec.code["attack one-step"]


def test_an_attack_whose_code_cannot_be_read_is_run_but_not_recorded(attacked, tmp_path, monkeypatch, linear):
    scope = {"__name__": "nowhere"}
    exec(ATTACK, scope)
    monkeypatch.setitem(ATTACKS.added, "one-step", scope["OneStep"])
    ask = partial(
        evaluate, linear(torch.ones(48), -30.0).eval(), torch.full((2, 3, 4, 4), 0.5), [0, 0], audit=False,
        protocol=str(tmp_path / "one-step.toml"),
    )  # fmt: skip
    assert robust(ask()) == 1
    with pytest.raises(BadInputError, match="code of attack one-step cannot be read"):
        ask(out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


CORRUPTION = """
class Darker:
    parameters = {"imagecorruptions": (1, 2, 3, 4, 5)}

    def fast(self, image, parameter, rng):
        return image - image // FACTOR

MEMBER = Darker()
"""
GRID = corruption_protocol(["darker"], [1])


def test_another_code_of_an_added_corruption_makes_a_new_record(module, tmp_path, monkeypatch, linear):
    (tmp_path / "darker.toml").write_text(GRID)
    x, model = np.full((4, 8, 8, 3), 200, np.uint8), linear(torch.ones(192), -192 * 0.5).eval()
    found = []
    for factor in (1, 10):
        member = module("my_corruption", CORRUPTION.replace("FACTOR", str(factor))).MEMBER
        monkeypatch.setitem(CORRUPTIONS.added, "darker", member)
        found.append(evaluate(model, x, [1] * 4, protocol=str(tmp_path / "darker.toml"), out=tmp_path / "runs"))
    assert [one.metrics["corruption_accuracy"].value for one in found] == [0, 1]
    assert found[0].spec.code["corruption darker"] != found[1].spec.code["corruption darker"]


def test_added_metrics_of_a_kept_record_are_computed_again(metrics_of_a_test, tmp_path, linear):
    ask = partial(
        evaluate, linear(torch.ones(48), -24.0).eval(), GREYS, [0, 0, 1, 1], protocol="clean", out=tmp_path
    )  # fmt: skip
    first = ask()
    for value in (0.25, 0.75):
        METRICS.added.pop("mine", None)
        scores = partial(_constant, value)
        METRICS.add(Mean(name="mine", title="", task="classification", kinds=("clean",), unit=PERCENT, scores=scores))
        again = ask()
        assert again.created == first.created
        assert again.metrics["mine"].value == value
        assert load_record(find_records(tmp_path)[0]).metrics == again.metrics
    assert first.metrics.items() < again.metrics.items()


def _constant(value, outcomes):
    from robustbench_kpca.metrics import Scores

    return Scores(outcomes["sample"], np.full(len(outcomes), value))


FACTORY = """
import torch
from layers import Layer

def make():
    return Layer()
"""
LAYER = """
import torch

class Layer(torch.nn.Module):
    def forward(self, x):
        score = 10 * (x - 0.5).mean((1, 2, 3))
        return torch.stack([score.detach() if HIDDEN else score, torch.zeros_like(score) + 0 * x.mean()], 1)
"""


def test_code_of_a_model_that_shows_only_in_its_gradients_makes_a_new_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FACTORY)
    x, y = torch.full((4, 3, 8, 8), 0.505), [0] * 4
    found = []
    for hidden in (True, False):
        (tmp_path / "layers.py").write_text(f"HIDDEN = {hidden}" + LAYER)
        ask = {"protocol": "pgd20-linf-8_255", "audit": False, "out": tmp_path / "runs"}
        found.append(evaluate(load_model("mine.py:make"), x, y, **ask))
    probes = {one.spec.model.probe_sha256 for one in found}
    assert len(probes) == 1
    assert found[0].spec.digest() != found[1].spec.digest()
    assert [robust(one) for one in found] == [1, 0]


def test_a_record_of_an_older_version_of_our_code_is_made_again(tmp_path, linear, caplog):
    caplog.set_level("INFO")
    ask = partial(
        evaluate, linear(torch.ones(48), -24.0).eval(), GREYS, [0, 0, 1, 1], protocol="fgsm-linf-8_255",
        audit=False, out=tmp_path,
    )  # fmt: skip
    first = ask()
    assert sorted(first.algorithms) == ["attack fgsm", "attack loop"]
    assert ask().created == first.created
    (path,) = find_records(tmp_path)
    content = json.loads(path.read_text())
    for before, made_again in (({}, False), (first.algorithms | {"attack fgsm": 2}, True)):
        path.write_text(json.dumps(content | {"algorithms": before, "created": "2026-01-01T00:00:00+00:00"}))
        assert (ask().created != "2026-01-01T00:00:00+00:00") == made_again
    assert "made again: another version of attack fgsm" in caplog.text
    assert load_record(path).algorithms == first.algorithms


def test_nothing_unfinished_is_gone_on_with_by_other_code(linear, monkeypatch):
    ask = partial(
        evaluate, linear(torch.ones(48), -24.0).eval(), GREYS, [0, 0, 1, 1], protocol="fgsm-linf-8_255", audit=False
    )
    made = ask(eps="1/255").algorithms
    keys = []
    for now in (made, made, made | {"attack loop": 2}):
        monkeypatch.setattr("robustbench_kpca.evaluation.evaluation.algorithms", lambda scenario, now=now: now)
        named = NamedModel.of(linear(torch.ones(48), -24.0).eval(), "m")
        data, scenario = as_dataset(GREYS, [0, 0, 1, 1]).in_order(), load_scenario("fgsm-linf-8_255")[1]
        keys.append(Evaluation.begin(named, data, "fgsm", scenario, RunOptions()).key)
    assert keys[0] == keys[1] != keys[2]


SCRIPT = (
    ATTACK
    + """
import sys
from robustbench_kpca import evaluate
from robustbench_kpca.attacks import ATTACKS

ATTACKS.add("one-step", OneStep)

if __name__ == "__main__":
    record = evaluate("vit_digits", protocol="one-step.toml", audit=False, out="runs", **eval(sys.argv[1]))
    print(record.spec.stem(), record.outcomes.digest())
"""
)


@pytest.mark.slow
def test_processes_that_a_script_starts_find_the_code_that_it_adds(tmp_path):
    (tmp_path / "one-step.toml").write_text(PROTOCOL)
    (tmp_path / "script.py").write_text(SCRIPT)

    def said(how):
        command = [sys.executable, "script.py", repr(how)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert said({"processes": 2}) == said({"fresh": True})
    assert len(find_records(tmp_path / "runs")) == 1


@pytest.mark.parametrize("change", ["attack one-step", "attack loop"])
def test_a_worker_with_other_code_refuses(change, module, tmp_path, monkeypatch, linear):
    (tmp_path / "one-step.toml").write_text(PROTOCOL)
    monkeypatch.setitem(ATTACKS.added, "one-step", module("my_attack", ATTACK).OneStep)
    scenario = load_scenario(str(tmp_path / "one-step.toml"))[1]
    named, data = NamedModel.of(linear(torch.ones(48), -24.0).eval(), "m"), as_dataset(GREYS, [0, 0, 1, 1])
    asked = Evaluation.begin(named, data.in_order(), "one-step", scenario, RunOptions())
    work = Work(named.model, asked.data, scenario, RunOptions(), asked.spec, str(tmp_path), asked.algorithms)
    assert subject_of(work, named.model).name == "m"
    if change in asked.algorithms:
        work = replace(work, algorithms={**asked.algorithms, change: 2})
    else:
        work = replace(work, spec=asked.spec.model_copy(update={"code": {**asked.spec.code, change: "0"}}))
    with pytest.raises(EvaluationError, match=f"code of {change} is another one"):
        subject_of(work, named.model)
