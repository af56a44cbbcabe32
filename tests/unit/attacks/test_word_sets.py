"""What attacks on words may propose, which protocols make sense for texts, and what a text is scored by."""

import pytest
import torch

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._engine.attack_loop.checks import Checks
from robustbench_kpca._engine.attack_loop.sets import set_of
from robustbench_kpca.attacks.shared import words as shared_words
from robustbench_kpca.attacks.shared.words import distributions
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.tasks.language.success import HigherLoss
from robustbench_kpca.tasks.prepare import prepare
from robustbench_kpca.types import IGNORE

CLEAN = torch.tensor([5.0, 6, 0, 7, 8, 9, 4, 3, 2, 1]).view(1, 1, 1, 10)


@pytest.mark.parametrize(
    ("place", "word", "what"),
    [
        ([0, 1, 3], 9.0, "2 other words|3 other words"),
        ([2], 4.0, "no text"),
        ([3], 4.5, "no text"),
        ([3], float("nan"), "no text"),
    ],
)
def test_texts_outside_the_set_are_refused(place, word, what):
    allowed, text = set_of(Threat("words", 0.2)), CLEAN.clone()
    text[..., place] = word
    with pytest.raises(EvaluationError, match=what):
        allowed.check(text, CLEAN, "some", Checks())
    swapped = CLEAN.clone()
    swapped[..., [0, 1]] = 9
    allowed.check(swapped, CLEAN, "some", Checks())
    swapped[..., 3] = 9
    allowed.check(swapped, CLEAN, "some", Checks(), outside=True)
    assert allowed.beyond(torch.cat([swapped, CLEAN]), CLEAN.expand(2, -1, -1, -1)).tolist() == [True, False]


@pytest.mark.parametrize(("eps", "words", "most"), [(0.015, 10, 1), (0.29, 100, 29), (0.05, 128, 6), (1, 7, 7)])
def test_a_rate_is_a_number_of_words(eps, words, most):
    assert Threat("words", eps).swaps(words) == most


def test_the_rate_is_written_as_a_share():
    scenario = load_scenario("hotflip-words-1.5")[1]
    assert (str(scenario.threat), scenario.budget) == ("1.5 % of words", "1.5 % of words")
    assert load_scenario("pgd20-linf-8_255")[1].budget == "linf 8/255 in pixel space"


@pytest.mark.parametrize(
    ("name", "changes", "what"),
    [
        ("hotflip-words-1.5", {"eps": 1.5}, "a share"),
        ("hotflip-words-1.5", {"space": "pixel", "norm": "linf"}, "replaces words"),
        ("pgd20-linf-8_255", {"norm": "words"}, "together"),
        ("pgd20-linf-8_255", {"norm": "words", "space": "word", "clip": False}, "choose hotflip"),
    ],
)
def test_protocols_that_make_no_sense_are_refused(name, changes, what):
    with pytest.raises(BadInputError, match=what):
        prepare(name, changes)


@pytest.mark.parametrize("change", [{"policy": "last"}, {"policy": "stop_at_first"}, {"labels": "predicted"}])
def test_texts_are_attacked_with_the_whole_budget_and_true_words(change):
    with pytest.raises(BadInputError, match="for a text"):
        HigherLoss().check_protocol(load_scenario("hotflip-words-1.5", change)[1], {})


def test_distributions_that_do_not_fit_are_refused(monkeypatch):
    with pytest.raises(BadInputError, match="three or more"):
        distributions(CLEAN, 2)
    monkeypatch.setattr(shared_words, "MOST", 4 * 10 * 12)
    assert distributions(CLEAN, 12).sum(1).tolist() == [[[1.0] * 10]]
    with pytest.raises(BadInputError, match="--batch-size 1"):
        distributions(CLEAN.expand(2, -1, -1, -1), 12)


def test_scores_are_the_mean_log_p_of_scored_words():
    success, logits = HigherLoss(), torch.randn(2, 5, 1, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[[1, IGNORE, 3, 4]], [[IGNORE, 2, IGNORE, 0]]])
    expected = [
        sum(logits[row].double().log_softmax(0)[u, 0, t] for t, u in enumerate(labels[row, 0].tolist()) if u >= 0) / n
        for row, n in ((0, 3), (1, 2))
    ]
    assert success.judge(logits, labels)[1].tolist() == pytest.approx([float(one) for one in expected], rel=1e-6)
    logits[0, 2, 0, 3] = torch.nan
    prediction, score = success.judge(logits, labels)
    assert score[0] == -torch.inf
    assert success.unanswered(prediction).tolist() == [True, False]
    assert torch.equal(success.join(success.split(prediction)), prediction)
    assert not bool(success.reached(prediction, labels).any())
