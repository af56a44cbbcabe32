"""A record says where a classifier is no better than guessing, or answers the same to all samples."""

import logging

import pytest
import torch
from scipy.stats import binomtest
from torch import nn

from robustbench_kpca import evaluate, load_data, load_model, load_record
from robustbench_kpca.cli.main import main
from robustbench_kpca.metrics.accuracy import guessing
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import find_records
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.classification.answers import odd_answers

pytestmark = pytest.mark.usefixtures("few_resamples")
TABLE = task_named("classification").tables["clean"]


def clean(labels, answers):
    rows = [
        {"sample": str(i), "label": label, "prediction": answer, "rank": int(label != answer), "confidence": 1.0}
        for i, (label, answer) in enumerate(zip(labels, answers, strict=True))
    ]
    return Outcomes.from_rows(TABLE, rows)


@pytest.mark.parametrize(("n", "right"), [(50, 0), (66, 1), (100, 3), (100, 10), (100, 17), (100, 18), (40, 7)])
def test_an_accuracy_whose_interval_is_not_above_guessing_is_flagged(n, right):
    """Ten classes alike in labels and answers; chance is 10 % where n is a multiple of 10, else nearly."""
    labels = [i % 10 for i in range(n)]
    answers = [label if i < right else (label + 1) % 10 for i, label in enumerate(labels)]
    counts = [[column.count(one) / n for one in range(10)] for column in (labels, answers)]
    chance = sum(a * b for a, b in zip(*counts, strict=True))
    assert guessing(clean(labels, answers)) == pytest.approx(chance)
    found = odd_answers(clean(labels, answers))
    assert bool(found) == (binomtest(right, n).proportion_ci(method="wilson").low <= chance)
    assert all(f"{100 * right / n:.1f} % [" in flag for flag in found)


@pytest.mark.parametrize(
    ("labels", "answers"),
    [
        ([i % 10 for i in range(200)], [i % 10 for i in range(200)]),
        ([0] * 20, [1] * 20),  # one class of many: nothing is known of the others
        ([0, 1] * 3, [5] * 6),  # few
    ],
)
def test_answers_that_are_not_odd(labels, answers):
    assert odd_answers(clean(labels, answers)) == []


def test_one_answer_to_all_is_odd_and_an_honest_network_is_not():
    (flag,) = odd_answers(clean([0, 1, 2, 3] * 4, [3] * 16))
    assert flag.startswith("the model answers class 3 to all 16 clean samples")
    assert "25.0 %" in flag
    data = load_data("digits", limit=80)
    for protocol in ("clean", "fgsm-linf-8_255"):
        assert evaluate(load_model("vit_digits"), data, protocol=protocol, audit=False).flags == ()


class Other(nn.Module):
    """A trained network whose classes are numbered in another order, or one that has one answer."""

    def __init__(self, constant=False):
        super().__init__()
        self.inner, self.constant = load_model("vit_digits"), constant
        self.eval()

    def forward(self, x):
        logits = self.inner(x).roll(1, 1)
        return 0 * logits + torch.arange(10.0) if self.constant else logits


@pytest.mark.parametrize(
    ("protocol", "constant", "said"),
    [("fgsm-linf-8_255", False, "numbered as the model numbers"), ("clean", True, "answers class 9")],
)
def test_the_record_the_log_and_the_screen_say_so(protocol, constant, said, tmp_path, capsys, caplog):
    with caplog.at_level(logging.WARNING, "robustbench_kpca"):
        record = evaluate(Other(constant), load_data("digits", limit=80), protocol=protocol, audit=False)
    assert [flag for flag in record.flags if said in flag]
    assert any(said in line.getMessage() for line in caplog.records)
    asked = ["eval", "-m", "test_odd_answers:Other", "--data", "digits", "--limit", "80", "-p", protocol]
    asked += ["--audit", "none", "-o", str(tmp_path), "--set", f"model.constant={str(constant).lower()}"]
    assert main(asked) == 0
    assert said in capsys.readouterr().err
    (path,) = find_records(tmp_path)
    assert [flag for flag in load_record(path).flags if said in flag]
