"""Members of every family from one file outside the package, by their address wherever a name is taken."""

import sys
from pathlib import Path

import pytest
import torch

from robustbench_kpca._core import address, plugins
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.cli.main import main
from robustbench_kpca.data.load import load_data
from robustbench_kpca.models import load_model, place
from robustbench_kpca.records.record import find_records, load_record

MINE = '''
from dataclasses import dataclass

import numpy as np
import torch

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


def plain(x):
    return x


def model():
    raise RuntimeError("no model")
'''
ATTACK = """
kind = "attack"
title = "Push"
citations = []
draws = 1
norm = "linf"
eps = "8/255"
policy = "stop_at_first"
labels = "true"
target = "none"
space = "pixel"
clip = true
precision = "fp32"
below = []

[[stage]]
attack = "mine.py:Push"
restarts = 1
"""
GRID = """
kind = "corruption"
title = "Darker"
citations = []
draws = 1
profile = "imagecorruptions"
mode = "fast"
storage = "none"
frost = "generated"
clean = false
reference = "none"
corruptions = ["mine.py:DARKER"]
severities = [1, 5]
"""


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


def test_an_attack_is_used_recorded_and_made_again_by_its_address(folder, capfd):
    assert rbk(*EVAL, "-p", "push.toml") == 0
    record = record_in("runs")
    assert "attack mine.py:Push" in record.spec.code
    assert "attack mine.py:Push" not in record.algorithms
    assert rbk("records", "show", "runs") == 0
    assert rbk("records", "verify", "runs") == 2
    assert "the record names code: mine.py:Push would be imported and run" in capfd.readouterr().err
    assert rbk("records", "verify", "runs", "--run-code") == 0


def test_another_code_at_an_address_makes_a_new_record(folder):
    assert rbk(*EVAL, "-p", "push.toml") == 0
    assert rbk(*EVAL, "-p", "push.toml") == 0
    assert len(find_records(folder / "runs")) == 1
    (folder / "mine.py").write_text(MINE.replace("STRENGTH = 1.0", "STRENGTH = 0.5"))
    assert rbk(*EVAL, "-p", "push.toml") == 0
    assert len({load_record(path).spec.code["attack mine.py:Push"] for path in find_records(folder / "runs")}) == 2


def test_a_corruption_and_a_data_set_are_used_by_their_address(folder):
    assert rbk(*EVAL, "-p", "darker.toml", "--data", "mine.py:few") == 0
    record = record_in("runs")
    assert "corruption mine.py:DARKER" in record.spec.code
    assert record.spec.data.n == 12
    assert rbk("records", "verify", "runs", "--run-code") == 0


def test_an_attention_is_placed_by_its_address(folder):
    with torch.random.fork_rng():
        model = place(load_model("vit_digits"), "mine.py:Mine", "first")
    assert type(model.blocks[0].attn).__name__ == "Mine"
    assert type(model.blocks[1].attn).__name__ == "SoftmaxAttention"


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ("no.py:Push", "there is no file no.py"),
        ("mine.py:Pull", "mine.py defines no Pull"),
        ("mine.py", "there is no attack named 'mine.py'"),
        ("mine.py:plain", "is a function without start, step; expected an object with start, step"),
        ("mine.py:DARKER", "is a Darker without start, step"),
        ("mine.py:Stuck", "cannot start (ValueError: mine.py, line"),
        ("broken.py:Push", "cannot be imported (ZeroDivisionError: broken.py, line 1)"),
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


def test_a_module_of_the_current_folder_has_an_address_too(folder, monkeypatch):
    (folder / "my_module.py").write_text(MINE)
    assert ATTACKS.get("my_module:Push").__name__ == "Push"
    monkeypatch.delitem(sys.modules, "my_module")


def test_data_of_the_wrong_kind_are_refused(folder):
    with pytest.raises(BadInputError, match=r"data set 'mine.py:plain' returned Request; expected a Dataset"):
        load_data("mine.py:plain")


def test_names_are_told_from_addresses():
    for name in ("pgd", "my folder:x y", "imagenet-a:/data", "C:\\x.toml"):
        assert not address.is_address(name) or name.startswith("C:")
    for name in ("a.py:F", "/x y/a.py:F", "package.module:F"):
        assert address.is_address(name)


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
def test_a_plugin_adds_members_to_lists_and_evaluations(folder, capfd):
    (folder / "push.toml").write_text(ATTACK.replace("mine.py:Push", "push"))
    assert rbk("--plugin", "mine.py", "list", "attacks") == 0
    assert "Move every pixel up. (from mine.py)" in " ".join(capfd.readouterr().out.split())
    assert rbk(*EVAL, "-p", "push.toml", "-p", "clean") == 0
    records = [load_record(path) for path in find_records(folder / "runs")]
    assert sorted(name for one in records for name in one.spec.code) == ["attack push"]
    assert [one.metrics["error"].value for one in records if one.kind == "clean"] == [0.0]


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
