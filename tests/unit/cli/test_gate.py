"""Gates for users: limits and baselines in pytest, and the scripts of the GitHub action, run on tiny data."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stand_ins import ACTION, scripted

from robustbench_kpca import load_record
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.records.estimate import Estimate, proportion
from robustbench_kpca.report.compare import MARK, Rule, against_baseline, against_limit, comment, compare

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[3]
PLUGIN = "robustbench_kpca.pytest_plugin"
RECORDS = ROOT / "leaderboards" / "digits-attacks" / "records"


def record(model, protocol="pgd20-linf-8_255"):
    return load_record(next(RECORDS.glob(f"{model}__digits-test__{protocol}__*.record.json")))


def renamed(one, name):
    spec = one.spec.model_copy(update={"model": one.spec.model.model_copy(update={"name": name})})
    return one.model_copy(update={"spec": spec}).attach(one.outcomes)


def test_a_limit_fails_only_beyond_the_interval():
    one = record("vit_digits_adv")
    high = proportion(60, 64).high  # Wilson, of the 60 of 64 images that stand
    assert one.metrics["robust_accuracy"].value == 60 / 64
    assert against_limit(one, high - 1e-6).passed
    failed = against_limit(one, high + 1e-6)
    assert not failed.passed
    assert "robust_accuracy 93.8 % [85.0, 97.5] is below 97.5 % (n = 64)" in str(failed)
    lower = one.model_copy(update={"metrics": {"ece": Estimate(0.2, 0.1, 0.3, 64, "")}})  # lower is better
    for limit, passed, said in ((0.05, False, "is above"), (0.15, True, "not clearly above"), (0.2, True, "at most")):
        found = against_limit(lower, limit, "ece")
        assert (found.passed, said in str(found)) == (passed, True)
    with pytest.raises(BadInputError, match="the record has no ece"):
        against_limit(one, 0.5, "ece")


@pytest.mark.parametrize("limit", [80, 1.01, -0.1])
def test_a_limit_of_a_share_is_between_0_and_1(limit):
    with pytest.raises(BadInputError, match=r"for robust_accuracy; expected 0 to 1: 0\.4 is 40 %"):
        against_limit(record("vit_digits_adv"), limit)


def test_one_sample_decides_nothing_and_a_baseline_is_compared_as_check_does(tmp_path):
    (path,) = (ROOT / "leaderboards" / "shapes" / "records").glob("symvit_shapes__*__segmentation__*.record.json")
    found = load_record(path)
    alone = found.model_copy(update={"metrics": {"miou": Estimate(0.5, 0.5, 0.5, 1, "bootstrap")}})
    with pytest.raises(BadInputError, match="of 1 sample has no interval; evaluate more"):
        against_limit(alone, 0.6, "miou")
    strong, weak = record("vit_digits_adv"), renamed(record("vit_digits"), "vit_digits_adv")
    found = against_baseline(weak, RECORDS, "robust_accuracy:-2pp")
    (done,) = compare([weak], [strong], [Rule.parse("robust_accuracy:-2pp")])
    assert done.regression
    assert not found.passed
    assert str(done) in str(found)
    assert against_baseline(strong, RECORDS, "robust_accuracy:-2pp").passed
    with pytest.raises(BadInputError, match="4 records"):
        against_baseline(renamed(weak, "other"), RECORDS, "robust_accuracy:-2pp")


def test_the_comment_is_a_table_without_markup():
    strong, weak = record("vit_digits_adv"), record("vit_digits")
    evil = "a|b <img src=x> [d](http://e) `c`\n# head"
    text = comment(compare([renamed(weak, evil)], [strong], [Rule.parse("robust_accuracy:-2pp")]))
    assert text.startswith(f"{MARK}\n")
    assert "**1 of 1 comparisons are regressions.**" in text
    row = next(line for line in text.splitlines() if line.startswith("| REGRESSION"))
    head = next(line for line in text.splitlines() if line.startswith("| ") and "Model" in line)
    assert len(re.findall(r"(?<!\\)\|", row)) == len(re.findall(r"(?<!\\)\|", head))
    assert "<img" not in text
    assert "](" not in text.replace("\\](", "")
    assert comment(compare([strong], [strong], [Rule.parse("robust_accuracy:-2pp")])).count("No regression in 1") == 1


TESTS = """
import pytest, torch
from torch import nn

class Sign(nn.Module):  # right about images whose first pixel is bright, and nothing else matters
    def forward(self, x):
        score = 4 * (x[:, 0, 0, 0] - 0.5)
        return torch.stack([-score, score], 1)

images = torch.zeros(40, 1, 2, 2); images[::2] = 1
labels = torch.tensor([1, 0] * 20)

@pytest.mark.robustness
def test_enough(assert_robust):
    record = assert_robust(Sign().eval(), (images, labels), "fgsm-linf-8_255", at_least=0.9, batch_size=40)
    assert record.metrics["robust_accuracy"].value == 1

@pytest.mark.robustness
def test_too_few(assert_robust):
    assert_robust(Sign().eval(), (images, 1 - labels), "clean", at_least=0.9, batch_size=40, name="wrong")

def test_no_limit(assert_robust):
    assert_robust(Sign(), (images, labels), "clean")
"""


def test_the_plugin_fails_tests_and_prints_what_it_measured(pytester, few_resamples):
    pytester.makepyfile(TESTS)
    done = pytester.runpytest_inprocess("-p", PLUGIN, "--strict-markers", "-p", "no:xdist")
    done.assert_outcomes(passed=1, failed=2)
    done.stdout.fnmatch_lines(
        [
            "*BadInputError: assert_robust without a limit*",
            "*= robustness =*",
            "Sign on images under fgsm-linf-8_255: robust_accuracy 100.0 % ?91.2, 100.0? at least 90.0 % (n = 40)",
            "wrong on images under clean: clean_accuracy 0.0 % ?0.0, 8.8? is below 90.0 % (n = 40)",
        ]
    )
    chosen = pytester.runpytest_inprocess("-p", PLUGIN, "-m", "robustness", "-p", "no:xdist", "--collect-only", "-q")
    chosen.stdout.fnmatch_lines(["*2/3 tests collected (1 deselected)*"])


def test_the_action_fails_on_a_regression_and_writes_its_summary(tmp_path):
    """Without a model the script compares records that are there."""
    for name, model in (("old", "vit_digits_adv"), ("robustness", "vit_digits")):
        (tmp_path / name).mkdir()
        for file in RECORDS.glob(f"{model}__digits-test__pgd20-linf-8_255__*"):
            shutil.copy(file, tmp_path / name)
        shutil.copytree(RECORDS / "audits", tmp_path / name / "audits")
    settings = {"RBK_BASELINE": "old", "RBK_FAIL": "robust_accuracy:-2pp clean_accuracy:-5pp"}
    done = scripted(tmp_path, "gate.sh", GITHUB_STEP_SUMMARY=str(tmp_path / "summary.md"), **settings)
    assert done.returncode == 1, done.stderr
    assert "::error title=robust_accuracy" in done.stdout
    assert "| REGRESSION |" in (tmp_path / "summary.md").read_text()
    assert 'failures="1"' in (tmp_path / "robustness/check.xml").read_text()
    missing = scripted(tmp_path, "gate.sh", RBK_FAIL="robust_accuracy:-2pp")
    assert missing.returncode != 0
    assert "folder of baseline records" in missing.stderr


def test_the_comment_of_an_earlier_run_is_replaced(tmp_path):
    """`gh` is a stand-in that notes how it was called, and answers with the comment that it was told of."""
    (tmp_path / "programs").mkdir()
    (tmp_path / "robustness").mkdir()
    (tmp_path / "robustness/check.md").write_text(f"{MARK}\ntable\n")
    program = tmp_path / "programs/gh"
    program.write_text('#!/bin/sh\necho "$@" >> calls\ncase "$*" in *--paginate*) printf "$EARLIER";; esac\n')
    program.chmod(0o755)
    known = {"GITHUB_REPOSITORY": "me/it", "RBK_PULL_REQUEST": "7"}
    for earlier, wanted in (
        ("", "api --method POST repos/me/it/issues/7/comments -F body=@robustness/check.md --silent"),
        ("12\\n13\\n", "api --method PATCH repos/me/it/issues/comments/12 -F body=@robustness/check.md --silent"),
    ):
        done = scripted(tmp_path, "comment.sh", EARLIER=earlier, **known)
        assert done.returncode == 0, done.stderr
        first, second = (tmp_path / "calls").read_text().splitlines()
        assert f'startswith("{MARK}")' in first
        assert second == wanted
        (tmp_path / "calls").unlink()


def test_the_action_hands_over_every_input_and_the_plugin_imports_nothing_heavy():
    # Every input that gate.sh reads is set by action.yml, and the reusable workflow hands every input on.
    text, gate = (ACTION / "action.yml").read_text(), (ACTION / "gate.sh").read_text()
    for name in set(re.findall(r"\$\{(RBK_[A-Z]+)", gate)):
        assert f"{name}: ${{{{ inputs." in text, name
    inputs = re.findall(r"^  (\w+):$", text.partition("runs:")[0], re.MULTILINE)
    workflow = (ROOT / ".github/workflows/robustness.yml").read_text()
    assert len(inputs) == 10
    for name in set(inputs) - {"out", "comment"}:  # a job of its own comments
        assert f"          {name}: ${{{{ inputs.{name} }}}}" in workflow, name
    code = "import sys, robustbench_kpca.pytest_plugin; print({'torch', 'numpy', 'pandas'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
