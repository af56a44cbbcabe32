"""Metrics of corruption, shift and unknown classes as records and boards show them."""

import itertools

import numpy as np
import pytest

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import measure, metric_for
from robustbench_kpca.metrics.shared.error_table import ALEXNET_ERRORS
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.report.compare import Rule
from robustbench_kpca.tasks.classification import TASK


def outcomes_with(errors, clean=None, n=100):
    """Outcomes of `n` images of label 0 with exactly these error rates by (corruption, severity)."""
    cells = ([(("none", 0), clean)] if clean is not None else []) + list(errors.items())
    wrong = np.concatenate([np.arange(n) < round(rate * n) for _, rate in cells])
    columns = {
        "sample": np.tile(np.array([f"{i}" for i in range(n)], dtype=object), len(cells)),
        "label": np.zeros(n * len(cells), int),
        "corruption": np.repeat(np.array([cell[0] for cell, _ in cells], dtype=object), n),
        "severity": np.repeat([cell[1] for cell, _ in cells], n),
        "prediction": wrong.astype(int),
        "rank": wrong.astype(int) * 7,
    }
    return Outcomes.from_columns(TASK.table("corruption"), columns)


def test_another_model_can_be_the_reference():
    cells = list(itertools.product(("fog", "snow"), (1, 2)))
    model = outcomes_with(dict(zip(cells, (0.2, 0.4, 0.1, 0.3), strict=True)), clean=0.1)
    reference = outcomes_with(dict(zip(cells, (0.4, 0.8, 0.4, 0.4), strict=True)), clean=0.2)
    mce = metric_for("mce").relative_to(reference)
    assert mce.estimate(model).value == pytest.approx((0.6 / 1.2 + 0.4 / 0.8) / 2)
    assert mce.estimate(reference).value == pytest.approx(1)
    relative = metric_for("relative_mce").relative_to(reference)
    assert relative.estimate(model).value == pytest.approx(((0.3 - 0.1) / (0.6 - 0.2) + (0.2 - 0.1) / (0.4 - 0.2)) / 2)
    with pytest.raises(BadInputError, match="nothing"):
        metric_for("corruption_accuracy").relative_to(reference)


def test_lower_errors_are_better_and_pairs_say_so():
    cells = list(itertools.product(("fog", "snow"), (1, 2)))
    good, bad = (outcomes_with(dict.fromkeys(cells, rate), clean=0.0) for rate in (0.1, 0.6))
    metric = metric_for("mean_corruption_error")
    found = metric.paired(good, bad)
    assert (found.first, found.second) == (pytest.approx(0.1), pytest.approx(0.6))
    assert (found.lost, found.gained) == (50, 0)
    assert found.p_value < 0.001
    assert metric.better(found.first, found.second)
    kept = metric_for("retention").paired(good, bad)
    assert (kept.first, kept.second) == (pytest.approx(0.9), pytest.approx(0.4))
    assert kept.p_value < 0.01
    assert kept.lost is None


def test_which_metrics_apply_and_what_counts_in_them():
    cells = {(name, level): 0.5 for name in ALEXNET_ERRORS for level in range(1, 6)}
    own = load_scenario("common-corruptions")[1]
    usual = {"clean_accuracy", "corruption_accuracy", "corruption_top5_accuracy", "mean_corruption_error", "retention"}
    assert set(measure(outcomes_with(cells, 0.1), own)) == usual
    alexnet = load_scenario("imagenet-c-generated")[1]
    assert set(measure(outcomes_with(cells, 0.1), alexnet)) == usual | {"mce", "relative_mce"}
    stored = load_scenario("imagenet-c")[1]
    assert set(measure(outcomes_with(cells), stored)) == usual - {"clean_accuracy", "retention"} | {"mce"}
    cells = {("fog", 1): 0.2, ("spatter", 1): 0.9}
    assert metric_for("mean_corruption_error").estimate(outcomes_with(cells)).value == pytest.approx(0.2)
    only = outcomes_with({("spatter", 1): 0.9})  # unless there are no others
    assert metric_for("mean_corruption_error").estimate(only).value == pytest.approx(0.9)
    outcomes = outcomes_with({("fog", 1): 0.4})
    outcomes.columns["rank"][:10] = 4  # of the forty wrong ones, ten are fifth
    assert metric_for("corruption_top5_accuracy").estimate(outcomes).value == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("protocol", "fields"),
    [
        ("imagenet-c-extra", {}),
        ("imagenet-c", {"severities": [1, 2, 3]}),
        ("imagenet-c", {"corruptions": ["fog", "snow"]}),
    ],
)
def test_mce_is_of_the_15_corruptions_at_five_severities_and_of_nothing_else(protocol, fields):
    """On other grids a board may divide by a model's errors; a record has the unnormalised mean."""
    scenario = load_scenario(protocol, fields)[1]
    assert scenario.reference == "alexnet"
    outcomes = outcomes_with({(name, level): 0.5 for name in scenario.corruptions for level in scenario.severities})
    found = measure(outcomes, scenario)
    assert "mean_corruption_error" in found
    assert "mce" not in found


@pytest.mark.parametrize(
    ("text", "fine"),
    [("mce:+2pp", True), ("mce:-2pp", False), ("robust_accuracy:-2pp", True), ("robust_accuracy:+2pp", False)],
)
def test_a_rule_names_a_change_for_the_worse(text, fine):
    if fine:
        assert Rule.parse(text).drop == pytest.approx(0.02)
    else:
        with pytest.raises(BadInputError, match=r"expected (mce:\+2pp|robust_accuracy:-2pp)"):
            Rule.parse(text)


def unknown(known, strange, **columns):
    """Outcomes whose sureness in every way is as given."""
    sure = np.array([*known, *strange], float)
    rows = {"sample": [f"{i}" for i in range(len(sure))], "label": [0] * len(known) + [1] * len(strange)}
    table = TASK.table("ood")
    return Outcomes.from_columns(table, rows | dict.fromkeys([*table.columns][2:], sure) | columns)


def test_unsure_means_unknown_and_chance_stands_beside():
    perfect, inverted = unknown([3, 4, 5, 6], [1, 2]), unknown([1, 2], [3, 4, 5, 6])
    assert metric_for("aupr").estimate(perfect).value == 1
    assert metric_for("auroc").estimate(inverted).value == 0
    assert metric_for("aupr").chance(perfect) == pytest.approx(1 / 3)
    assert metric_for("auroc").chance(perfect) == 0.5
    found = metric_for("aupr").estimate(unknown(np.linspace(0, 1, 80), np.linspace(0, 1, 20)))
    assert found.low < 0.2 < found.high  # two samples alike: chance is 20 of 100
    assert metric_for("aupr_max_logit").estimate(
        unknown([3, 4], [1, 2], max_logit=np.array([1.0, 2, 3, 4]))
    ).value == pytest.approx((1 / 3 + 2 / 4) / 2)
    assert metric_for("fpr95").lower_is_better


def test_pairs_are_compared_and_calibrated():
    rng = np.random.default_rng(0)
    known, strange = rng.normal(size=300), rng.normal(size=100)
    good, bad = unknown(known + 2, strange), unknown(known + 0.2, strange)
    found = metric_for("aupr").paired(good, bad)
    assert found.first > found.second
    assert found.p_value < 0.01
    assert metric_for("aupr").paired(good, good).p_value == 1
    confidence = np.full(200, 0.8)
    prediction = (np.arange(200) < 80).astype(int)  # 60 % right where 80 % were promised
    columns = {"sample": [f"{i:03d}" for i in range(200)], "label": [0] * 200, "prediction": prediction}
    outcomes = Outcomes.from_columns(TASK.table("clean"), columns | {"rank": prediction, "confidence": confidence})
    assert metric_for("ece").estimate(outcomes).value == pytest.approx(0.2)
    assert metric_for("rms_calibration_error").estimate(outcomes).value == pytest.approx(0.2)
    few = outcomes.where(np.arange(200) < 50)
    assert "ece" in measure(few, load_scenario("clean")[1])
    assert "rms_calibration_error_compat" not in measure(few, load_scenario("clean")[1])
