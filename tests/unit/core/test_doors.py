"""Members of every family from one file outside the package, by their address wherever a name is taken."""

import json
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from board_pages import board_text
from fake_ray import FakeRay
from safetensors.torch import save_file
from stand_ins import attack_protocol, corruption_protocol

from robustbench_kpca import evaluate
from robustbench_kpca._core import address, plugins
from robustbench_kpca._core.errors import BadInputError, UnknownNameError
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.cli.main import main
from robustbench_kpca.corruptions import CORRUPTIONS
from robustbench_kpca.data import DATASETS
from robustbench_kpca.data.load import load_data
from robustbench_kpca.evaluation.identity import added_members
from robustbench_kpca.metrics import METRICS
from robustbench_kpca.models import create_model, load_model, place
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records.record import find_records, load_record
from robustbench_kpca.study.diagnostics import CLAIMS
from robustbench_kpca.tasks import task_named

MINE = '''
from dataclasses import dataclass

import numpy as np
import torch

from robustbench_kpca import corruption
from robustbench_kpca.attention.softmax import SoftmaxAttention
from robustbench_kpca.data.load import load_data
from robustbench_kpca.metrics import PERCENT, Mean, Scores

STRENGTH = 1.0


@dataclass(frozen=True)
class Push:
    """Move every pixel up."""

    def start(self, x, y, threat, keys):
        return {"x": x, "finished": torch.zeros_like(keys, dtype=torch.bool)}

    def step(self, state, threat, query):
        x = (state["x"] + STRENGTH * threat.eps).clamp(0, 1)
        query.logits(x)
        return state | {"x": x, "finished": torch.ones_like(state["finished"])}


@dataclass(frozen=True)
class Stuck(Push):
    def start(self, x, y, threat, keys):
        raise ValueError("no")


@dataclass(frozen=True)
class Falls(Push):
    def step(self, state, threat, query):
        return 1 / 0


class Darker:
    """Make a picture darker."""

    parameters = {"imagecorruptions": (1, 2, 3, 4, 5)}

    def fast(self, image, parameter, rng):
        return image // (1 + parameter)


DARKER = Darker()


class Mine(SoftmaxAttention):
    """Softmax attention of a researcher."""


def few(request):
    """Return twelve digits."""
    return load_data("digits", request.split, 12)


def _wrong(outcomes):
    return Scores(outcomes["sample"], (outcomes["prediction"] != outcomes["label"]).astype(float))


ERROR = Mean(
    name="error", title="error", what="The share of wrong answers.", task="classification", kinds=("clean",),
    unit=PERCENT, lower_is_better=True, scores=_wrong,
)


def register():
    from robustbench_kpca.attacks import ATTACKS
    from robustbench_kpca.corruptions import CORRUPTIONS
    from robustbench_kpca.metrics import METRICS

    ATTACKS.add("push", Push)
    CORRUPTIONS.add("darker", DARKER)
    METRICS.add(ERROR)


@corruption
def grain(image, severity, rng):
    return np.clip(image + rng.normal(0, 4 * severity, image.shape), 0, 255).astype(np.uint8)


def plain(x):
    return x


def model():
    raise RuntimeError("no model")
'''
ATTACK = attack_protocol("Push", "mine.py:Push")
GRID = corruption_protocol(["mine.py:DARKER"], [1, 5])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a researcher, which has everything in one file."""
    for name, text in (("mine.py", MINE), ("push.toml", ATTACK), ("darker.toml", GRID)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rbk(*words):
    return main([str(word) for word in words])


EVAL = ("eval", "-m", "vit_digits", "--limit", 12, "--audit", "none", "-q")


def record_in(folder):
    (path,) = find_records(Path(folder))
    return load_record(path)


def test_attacks_of_an_address(folder, capfd):
    assert rbk(*EVAL, "-p", "push.toml") == 0
    record = record_in("runs")
    assert "attack mine.py:Push" in record.spec.code
    assert "attack mine.py:Push" not in record.algorithms
    assert rbk("records", "show", "runs") == 0
    assert rbk("records", "verify", "runs") == 2
    assert "the record names code: mine.py:Push would be imported and run" in capfd.readouterr().err
    assert rbk("records", "verify", "runs", "--run-code") == 0
    assert rbk(*EVAL, "-p", "push.toml") == 0
    assert rbk(*EVAL, "-p", "push.toml") == 0
    assert len(find_records(folder / "runs")) == 1
    (folder / "mine.py").write_text(MINE.replace("STRENGTH = 1.0", "STRENGTH = 0.5"))
    assert rbk(*EVAL, "-p", "push.toml") == 0
    assert len({load_record(path).spec.code["attack mine.py:Push"] for path in find_records(folder / "runs")}) == 2


def test_corruptions_data_sets_attention_and_tasks_of_an_address(folder):
    assert rbk(*EVAL, "-p", "darker.toml", "--data", "mine.py:few") == 0
    record = record_in("runs")
    assert "corruption mine.py:DARKER" in record.spec.code
    assert record.spec.data.n == 12
    assert rbk("records", "verify", "runs", "--run-code") == 0
    with torch.random.fork_rng():
        model = place(load_model("vit_digits"), "mine.py:Mine", "first")
    assert type(model.blocks[0].attn).__name__ == "Mine"
    assert type(model.blocks[1].attn).__name__ == "SoftmaxAttention"
    with pytest.raises(UnknownNameError, match="there is no task named"):
        task_named("mine.py:Push")


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ("no.py:Push", "there is no file no.py"),
        ("mine.py:Pull", "mine.py defines no Pull"),
        ("mine.py", "there is no attack named 'mine.py'"),
        ("mine.py:plain", "is a function without start, step; expected an object with start, step"),
        ("mine.py:DARKER", "is a Darker without start, step"),
        ("mine.py:Stuck", "cannot start (ValueError: mine.py, line"),
        ("broken.py:Push", "cannot be imported (ZeroDivisionError: broken.py, line 1: division by zero)"),
        ("nomodule:Push", "there is no module nomodule"),
    ],
)
def test_a_bad_address_is_refused_in_one_line(attack, said, folder, capfd):
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "push.toml").write_text(ATTACK.replace("mine.py:Push", attack))
    assert rbk(*EVAL, "-p", "push.toml") == 2
    err = capfd.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not (folder / "runs").exists()


def test_an_attack_that_fails_ends_the_evaluation_in_one_line(folder, capfd):
    (folder / "push.toml").write_text(ATTACK.replace("mine.py:Push", "mine.py:Falls"))
    assert rbk(*EVAL, "-p", "push.toml") == 3
    err = capfd.readouterr().err
    assert "attack 'mine.py:Falls' failed (ZeroDivisionError: mine.py, line" in err
    assert err.count("\n") == 1
    assert not list((folder / "runs").glob("*.record.json"))


@pytest.mark.parametrize("family", [ATTACKS, CORRUPTIONS, ATTENTIONS, DATASETS, CLAIMS])
def test_a_member_of_the_wrong_kind_is_not_added(family):
    with pytest.raises(BadInputError, match=rf"{family.kind} 'odd' is a float without .*; expected an object with"):
        family.add("odd", 0.5)
    assert "odd" not in family


CHECK = ("check", "runs", "--baseline", "runs", "--fail", "robust_accuracy:-2pp")


def board(folder, metric):
    """Write a board of two models under the attack and the metric; return the words that render it."""
    (folder / "board").mkdir(exist_ok=True)
    columns = {"Push": ("push.toml", "robust_accuracy"), "Error": ("clean", metric)}
    (folder / "board" / "board.toml").write_text(board_text(["vit_digits", "symvit_digits"], columns, limit=12))
    return "board", "render", folder / "board", "--records", folder / "runs", "--out", folder / "pages"


def test_code_that_a_record_or_a_board_names_is_not_run_unasked(folder, capfd):
    models = ("-m", "symvit_digits", "-p", "push.toml", "-p", "clean")
    assert rbk(*EVAL, *models) == 0
    (folder / "mine.py").write_text("open('was-run', 'w')\nraise SystemExit\n")
    for words in (
        ("records", "show", "runs"),
        ("records", "status", "runs"),
        ("board", "report", "runs"), CHECK, ("records", "export", "runs", "-o", "all.csv"),
        board(folder, "clean_accuracy"),
        ("board", "plan", folder / "board", "--records", "runs"),
    ):  # fmt: skip
        code = rbk(*words)
        assert code == 0, (words, capfd.readouterr().err)
    assert rbk("records", "verify", "runs") == 2
    board(folder, "mine.py:ERROR")
    capfd.readouterr()
    assert rbk("board", "render", folder / "board", "--records", "runs") == 2
    assert "names code: mine.py:ERROR; read that code, then add --plugin mine.py" in capfd.readouterr().err
    assert not (folder / "was-run").exists()


def test_weights_of_a_placed_attention_are_not_evaluated_with_another(folder):
    with torch.random.fork_rng():
        model = create_model("vit_digits", attention="mine.py:Mine", layers="first")
    save_file(model.state_dict(), "mine.safetensors", {"config": json.dumps(model.config)})
    with pytest.raises(BadInputError, match=r"trained with attention mine.py:Mine, .* --set model.attention=mine.py:M"):
        load_model("vit_digits", "mine.safetensors")
    loaded = load_model("vit_digits", "mine.safetensors", attention="mine.py:Mine", layers="first")
    assert type(loaded.blocks[0].attn).__name__ == "Mine"


@pytest.mark.untyped  # a check of types wraps what is sent
@pytest.mark.usefixtures("used")
@pytest.mark.parametrize("ray", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_member_that_a_program_adds_is_given_to_workers(ray, folder, monkeypatch):
    (folder / "push.toml").write_text(ATTACK.replace("mine.py:Push", "push"))
    if ray:
        monkeypatch.setitem(sys.modules, "ray", FakeRay())
    how = {"executor": "ray" if ray else None, "processes": 2}
    ATTACKS.add("push", address.load("mine.py:Push", "attack").member)
    ask = {"protocol": "push.toml", "audit": False, "quiet": True}
    images = load_data("digits", limit=12)
    one = evaluate("vit_digits", images, **ask)
    assert evaluate("vit_digits", images, **ask, **how).outcomes.digest() == one.outcomes.digest()


@pytest.mark.untyped  # a check of types wraps what is sent
def test_what_a_file_defines_is_pickled_for_another_process(folder):
    members = [address.load(f"mine.py:{name}", "object").member for name in ("Push", "few", "grain", "DARKER")]
    sent = address.dumps(members)
    assert all(one is other for one, other in zip(pickle.loads(sent)[:3], members, strict=False))
    code = "import pickle, sys; print(*(type(one).__name__ for one in pickle.load(sys.stdin.buffer)))"
    said = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=False)
    assert said.stdout.decode().split() == ["type", "function", "FunctionCorruption", "Darker"], said.stderr.decode()


@pytest.mark.usefixtures("used")
@pytest.mark.parametrize("module", ["__main__", "nowhere"])
def test_a_member_that_no_worker_can_import_is_refused_before_workers_start(module, folder):
    @dataclass(frozen=True)
    class Local:
        start = step = None

    Local.__module__ = module
    (folder / "push.toml").write_text(ATTACK.replace("mine.py:Push", "local"))
    ATTACKS.add("local", Local)
    scenario = load_scenario("push.toml")[1]
    with pytest.raises(BadInputError, match=r"attack 'local' was added by code .* name it FILE.py:OBJECT"):
        added_members(scenario, "classification", runs_script=False)


@pytest.fixture
def used(monkeypatch):
    """Forget the plugins that a test uses."""
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setattr(plugins, "_loaded", set(plugins._loaded))
    before = [dict(table) for table in plugins.TABLES]
    yield
    for table, content in zip(plugins.TABLES, before, strict=True):
        table.clear()
        table.update(content)


@pytest.mark.usefixtures("used")
def test_a_plugin_adds_members_to_lists_evaluations_and_boards(folder, capfd):
    (folder / "push.toml").write_text(ATTACK.replace("mine.py:Push", "push"))
    assert rbk("--plugin", "mine.py", "list", "attacks") == 0
    assert "Move every pixel up. (from mine.py)" in " ".join(capfd.readouterr().out.split())
    assert rbk(*EVAL, "-p", "push.toml", "-p", "clean") == 0
    records = [load_record(path) for path in find_records(folder / "runs")]
    assert sorted(name for one in records for name in one.spec.code) == ["attack push"]
    assert [one.metrics["error"].value for one in records if one.kind == "clean"] == [0.0]
    assert rbk(*board(folder, "error")) == 0
    assert "Error" in (folder / "pages" / "README.md").read_text()


@pytest.mark.usefixtures("used")
def test_a_record_of_a_plugin_that_is_gone_is_shown_compared_and_not_made_again(folder, capfd, monkeypatch):
    (folder / "push.toml").write_text(ATTACK.replace("mine.py:Push", "push"))
    assert rbk("--plugin", "mine.py", *EVAL, "-p", "push.toml") == 0
    assert rbk(*EVAL, "-p", "clean") == 0
    assert rbk("records", "verify", "runs") == 0
    monkeypatch.setenv(plugins.VARIABLE, "")
    for family in (ATTACKS, CORRUPTIONS, METRICS):
        family.added.clear()
    capfd.readouterr()
    assert rbk("records", "show", "runs") == 0
    assert "metric error is of a plugin that is not loaded here, and is not shown" in capfd.readouterr().out
    assert rbk(*CHECK) == 0
    (push,) = (path for path in find_records(folder / "runs") if "push" in path.name)
    capfd.readouterr()
    assert rbk("records", "verify", push) == 2
    assert capfd.readouterr().err == "rbk: error: there is no attack named 'push'; see: rbk list attacks\n"


@pytest.mark.usefixtures("used")
def test_a_metric_of_a_plugin_is_computed_for_older_records(folder, capfd):
    assert rbk(*EVAL, "-p", "clean") == 0
    assert "error" not in record_in("runs").metrics
    assert rbk("--plugin", "mine.py", "records", "show", "runs") == 0
    assert "\nerror  " in capfd.readouterr().out


@pytest.mark.usefixtures("used")
@pytest.mark.parametrize(("end", "said"), [("1 / 0", "ZeroDivisionError"), ("ATTACKS.add('pgd', Push)", "already")])
def test_a_plugin_that_fails_leaves_nothing(end, said, folder, capfd):
    text = f"from mine import Push\nfrom robustbench_kpca.attacks import ATTACKS\nATTACKS.add('half', Push)\n{end}\n"
    (folder / "half.py").write_text(text)
    assert rbk("--plugin", "half.py", "list", "attacks") == 2
    err = capfd.readouterr().err
    assert "the plugin" in err
    assert "half.py cannot be loaded" in err
    assert said in err
    assert err.count("\n") == 1
    assert "half" not in ATTACKS.added
