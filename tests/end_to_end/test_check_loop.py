"""The regression check in a loop: evaluate, check, break the weights, evaluate, check, mend them, evaluate, check."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from stand_ins import scripted

from robustbench_kpca._core.address import load
from robustbench_kpca.cli.main import main
from robustbench_kpca.pytest_plugin import AssertRobust
from robustbench_kpca.records.record import SUFFIX

pytestmark = pytest.mark.usefixtures("few_resamples")

NET = """
from pathlib import Path
from torch import nn
from robustbench_kpca import load_model

def build():
    model = load_model("vit_digits")
    if Path("broken").exists():  # the answers are those of the next class
        head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        head.weight.data, head.bias.data = head.weight.data.roll(1, 0), head.bias.data.roll(1, 0)
    return model.eval()
"""
PROTOCOLS = ("clean", "fgsm-linf-1_255")
RULES = ("clean_accuracy:-1pp", "robust_accuracy:-2pp")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    return tmp_path


def evaluate(out, protocols=PROTOCOLS):
    chosen = [word for protocol in protocols for word in ("-p", protocol)]
    few = ["--data", "digits", "--limit", "8", "--batch-size", "8", "--audit", "none"]
    assert main(["eval", "-m", "net.py:build", *chosen, *few, "--out", out]) == 0


def check(*more):
    rules = [word for rule in RULES for word in ("--fail", rule)]
    reports = ["--markdown", "now/check.md", "--junit", "now/check.xml"]
    return main(["check", "now", "--baseline", "baseline", *rules, *reports, *more])


def records():
    return {path.name.removesuffix(SUFFIX) for path in Path("now").glob(f"*{SUFFIX}")}


def said():
    return Path("now/check.md").read_text()


def test_by_command(repository, capsys):
    evaluate("baseline")
    evaluate("now")
    assert check() == 0
    assert "No regression in 3 comparisons" in said()
    assert "et aside" not in said() + capsys.readouterr().err
    good = records()

    Path("broken").touch()
    evaluate("now")
    assert check() == 1
    assert "3 of 3 comparisons are regressions" in said()
    assert 'failures="3"' in Path("now/check.xml").read_text()
    told = capsys.readouterr().err.replace("\n", "")
    assert all(name in told for name in good), "the older records are named"
    assert not any(name in told for name in records() - good)

    Path("broken").unlink()  # the records of these weights are there already
    evaluate("now")
    assert "kept" in capsys.readouterr().err
    assert check() == 0
    assert "No regression in 3 comparisons" in said()

    Path("broken").touch()
    evaluate("now", PROTOCOLS[:1])
    assert check() == 2, "of the newest weights nobody knows how they stand against FGSM"
    assert "the records have not" in capsys.readouterr().err
    assert "**Failed: rbk check did not finish" in said()
    assert 'errors="1"' in Path("now/check.xml").read_text()
    assert check("--partial") == 2, "a rule without any record is an error, too"

    assert main(["board", "report", "now", "-o", "page"]) == 0
    told = capsys.readouterr().err.replace("\n", " ")
    assert "another network" in told
    assert "of another seed" not in told


def test_a_report_of_an_earlier_run_never_stands_for_this_one(repository):
    Path("now").mkdir()
    for wrong in (["--fail", "nonsense"], []):  # a rule that cannot be read, a folder without records
        Path("now/check.md").write_text("No regression")
        assert check(*wrong) == 2
        assert "Failed" in said()
        assert "No regression" not in said()


@pytest.mark.parametrize("out", ["now", "baseline"])  # a baseline that is evaluated again follows its weights
def test_by_the_plugin(repository, out):
    lines = []
    few = {"name": "net", "batch_size": 8, "limit": 8, "audit": False, "quiet": True}

    def tested(out, **rule):
        network = load("net.py:build", "model").member()
        AssertRobust(lines)(network, "digits", PROTOCOLS[1], out=out, **few, **rule)

    tested("baseline", at_least=0)
    rule = {"baseline": "baseline", "drop": RULES[1]}
    tested(out, **rule)
    Path("broken").touch()
    with pytest.raises(pytest.fail.Exception, match="robust_accuracy") if out == "now" else nullcontext():
        tested(out, **rule)
    assert ("set aside" in lines[-1]) == (out == "baseline")
    Path("broken").unlink()
    tested(out, **rule)


def action(**settings):
    given = {
        "RBK_MODEL": "net.py:build", "RBK_PROTOCOL": PROTOCOLS[1], "RBK_LIMIT": "8", "RBK_OUT": "now",
        "RBK_BASELINE": "baseline", "RBK_OPTIONS": "--audit none --batch-size 8 -q", "RBK_FAIL": RULES[1],
        "GITHUB_STEP_SUMMARY": "summary.md",
    }  # fmt: skip
    Path("summary.md").unlink(missing_ok=True)
    done = scripted(Path.cwd(), "gate.sh", **given | settings)
    assert Path("summary.md").read_text() == said(), "the summary is the report of this run"
    return done.returncode


@pytest.mark.slow
def test_by_the_script_of_the_action(repository):
    evaluate("baseline", PROTOCOLS[1:])
    evaluate("now", PROTOCOLS[1:])
    assert action(RBK_MODEL="") == 0
    assert "No regression" in said()
    Path("broken").touch()
    assert action() == 1
    assert "1 of 1 comparisons are regressions" in said()
    assert action(RBK_MODEL="net.py:nothing") == 2
    assert "**Failed: the run did not finish" in said()
    Path("broken").unlink()
    assert action() == 0
    assert "No regression" in said()
