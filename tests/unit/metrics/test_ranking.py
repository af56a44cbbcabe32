import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics.detection import Ranking
from robustbench_kpca.metrics.shared.bootstrap import Resampled, bootstraps

# From the highest score down: OOD, in, OOD, in, in.
SCORES = np.array([0.9, 0.8, 0.7, 0.6, 0.5])
OOD = np.array([True, False, True, False, False])


def simulated(seed, ties=False, n=(120, 30)):
    rng = np.random.default_rng(seed)
    scores = np.r_[rng.normal(size=n[0]), rng.normal(0.7, 1, size=n[1])]
    ood = np.arange(sum(n)) >= n[0]
    return (np.round(scores, 1) if ties else scores), ood, rng


def test_values_by_hand():
    ranking = Ranking.of(SCORES, OOD)
    assert ranking.average_precision() == pytest.approx(0.5 * 1 + 0.5 * 2 / 3, abs=1e-12)
    assert ranking.auroc() == pytest.approx(5 / 6, abs=1e-12)  # of six pairs one is the wrong way round
    assert ranking.fpr_at_tpr() == pytest.approx(1 / 3, abs=1e-12)  # recall 1 is nearer to 0.95 than 0.5 is
    assert ranking.chance() == pytest.approx(2 / 5, abs=1e-12)
    ranking = Ranking.of(np.array([1.0, 1, 1, 0]), np.array([True, False, False, True]))
    assert ranking.average_precision() == pytest.approx(0.5 / 3 + 0.5 * 2 / 4, abs=1e-12)
    assert ranking.auroc() == pytest.approx((0.5 + 0.5 + 0 + 0) / 4, abs=1e-12)
    level = Ranking.of(np.ones(10), np.arange(10) < 3)
    assert (level.average_precision(), level.auroc(), level.fpr_at_tpr()) == (0.3, 0.5, 1.0)
    scores = np.array([-np.inf, np.inf, 0.0, -np.inf])
    assert Ranking.of(scores, np.array([False, True, False, False])).average_precision() == 1
    with pytest.raises(BadInputError, match="resample"):
        Ranking.of(SCORES, OOD).auroc(np.where(OOD, 0, 1))


@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([None, "whole", "real"]))
def test_agreement_with_scikit_learn(seed, ties, kind):
    scores, ood, rng = simulated(seed, ties)
    weights = {None: None, "whole": rng.integers(0, 4, len(ood)), "real": rng.random(len(ood))}[kind]
    ranking = Ranking.of(scores, ood)
    assert ranking.average_precision(weights) == pytest.approx(
        average_precision_score(ood, scores, sample_weight=weights), abs=1e-9
    )
    assert ranking.auroc(weights) == pytest.approx(roc_auc_score(ood, scores, sample_weight=weights), abs=1e-9)


@given(st.integers(0, 10_000), st.booleans())
def test_whole_weights_are_repetitions(seed, ties):
    scores, ood, rng = simulated(seed, ties)
    weights = np.append(rng.integers(0, 4, len(ood) - 1), 1)
    weights[0] = 1
    again = Ranking.of(np.repeat(scores, weights), np.repeat(ood, weights))
    ranking = Ranking.of(scores, ood)
    assert ranking.average_precision(weights) == pytest.approx(again.average_precision(), abs=1e-12)
    assert ranking.auroc(weights) == pytest.approx(again.auroc(), abs=1e-12)
    assert ranking.fpr_at_tpr(weights=weights) == again.fpr_at_tpr()
    assert ranking.chance(weights) == pytest.approx(again.chance(), abs=1e-12)


@given(st.integers(0, 10_000), st.booleans())
def test_many_rows_of_weights_have_the_numbers_of_each(seed, ties):
    scores, ood, rng = simulated(seed, ties)
    weights = rng.integers(0, 3, (5, len(ood)))
    ranking = Ranking.of(scores, ood)
    for number in (ranking.average_precision, ranking.auroc, ranking.fpr_at_tpr, ranking.chance):
        each = [float(number(weights=row)) for row in weights]
        assert number(weights=weights) == pytest.approx(each, rel=1e-12)


def fpr(outside, inside, tpr=0.95):
    scores = np.array([*outside, *inside], dtype=float)
    return Ranking.of(scores, np.arange(len(scores)) < len(outside)).fpr_at_tpr(tpr)


def test_fpr_by_hand():
    # 20 OOD images at 20, ..., 1, the others between them: 19 of 20, which is 0.95, are found from 2 down to 1.5
    outside = range(20, 0, -1)
    assert fpr(outside, [20.5, 15.5, 2.5]) == pytest.approx(3 / 3)
    assert fpr(outside, [20.5, 15.5, 2.5, 0.5]) == pytest.approx(3 / 4)
    # at 2 the share is 3 of 6, at 1.8 and 1.5 recall is the same: the lowest threshold counts
    assert fpr(outside, [20.5, 15.5, 2.5, 1.8, 1.5, 0.5]) == pytest.approx(5 / 6)
    # what comes after full recall never counts
    assert fpr([2, 1], [3, 0.5, 0.4]) == pytest.approx(1 / 3)
    assert fpr([3, 2], [1, 0]) == 0
    assert fpr([1, 0], [3, 2]) == 1
    # recalls are multiples of 1/12: 11/12 = 0.917 is nearer to 0.95 than 1 is
    outside = range(12, 0, -1)
    assert fpr(outside, [1.5, 6.5]) == pytest.approx(2 / 2)
    assert fpr(outside, [0.5, 6.5, 1.0]) == pytest.approx(1 / 3)
    assert fpr(outside, [0.5, 6.5, 1.0], tpr=1.0) == pytest.approx(2 / 3)


def test_the_bootstrap_agrees_with_the_law_of_the_auroc():
    # Hanley & McNeil (1982): the variance from P_xxy and P_xyy, here estimated from the images themselves
    scores, ood, _ = simulated(4, n=(150, 100))
    ranking = Ranking.of(scores, ood)
    above = scores[ood][:, None] > scores[~ood]
    error = math.sqrt(above.mean(axis=1).var() / 100 + above.mean(axis=0).var() / 150)
    [(low, high)] = bootstraps([Resampled(ranking.auroc)], 250, strata=ood)
    assert low < ranking.auroc() < high
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1)


@pytest.mark.parametrize(
    ("scores", "ood", "message"),
    [
        ([0.1, math.nan], [True, False], "1 NaN"),
        ([0.1, 0.2, 0.3], [True, False], "one score an image"),
        ([0.1, 0.2], [True, True], "2 of 2"),
        ([0.1, 0.2], [False, False], "0 of 2"),
        ([], [], "0 of 0"),
    ],
    ids=["nan", "lengths", "all", "none", "empty"],
)
def test_refusals(scores, ood, message):
    with pytest.raises(BadInputError, match=message):
        Ranking.of(np.array(scores, dtype=float), np.array(ood, dtype=bool))
