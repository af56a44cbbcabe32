"""Perplexities, their intervals and tests, against numbers that are computed here position by position."""

import math
from functools import partial

import numpy as np
import pytest

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import leading, measure, metric_for
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import cells_of
from robustbench_kpca.records.differences import differences
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.tasks.language import TASK

WORDS, ARTICLES = 240, 24
RATES = load_scenario("text-word-swap-rates", {})[1]


def positions(seed=0, cells=(("none", 0),), articles=ARTICLES, shift=0.0, block=8):
    """Outcomes of a text of 240 words; in corrupted cells every fifth word is swapped, and costs 3 nats more."""
    rng = np.random.default_rng(seed)
    place = np.arange(1, WORDS + 1)
    parts = []
    for name, severity in cells:
        swapped = (place % 5 == 0) & (severity > 0)
        loss = rng.gamma(2.0, 1.0, WORDS) + shift + 3 * swapped + 0.5 * severity
        parts.append(
            {
                "corruption": [name] * WORDS, "severity": [severity] * WORDS,
                "sample": [f"{(one - 1) // block:07d}" for one in place], "position": place,
                "article": place * articles // (WORDS + 1),
                "swapped": swapped.astype(int), "nll": loss,
            }
        )  # fmt: skip
    columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    return Outcomes.from_columns(TASK.table("clean" if len(cells) == 1 else "corruption"), columns)


grid = partial(positions, cells=tuple(cells_of(RATES)))


def test_perplexity_is_exp_of_the_mean_loss_and_compared_on_the_same_positions():
    outcomes = positions()
    found = metric_for("perplexity").estimate(outcomes)
    assert found.value == pytest.approx(math.exp(math.fsum(outcomes["nll"]) / WORDS))
    assert (found.n, found.method) == (ARTICLES, "bootstrap")
    with pytest.raises(BadInputError, match=r"a mean loss of 7\d\d nats a word.*diverged; train it again"):
        metric_for("perplexity").estimate(positions(shift=720.0))
    whole = positions()
    part = whole.where(whole["position"] != 100)
    with pytest.raises(BadInputError, match="in one record only"):
        metric_for("perplexity").paired(whole, part)


def test_the_interval_resamples_whole_articles():
    """Against resamples drawn here one by one: the ends lie where those of other random numbers lie."""
    outcomes, rng = positions(), np.random.default_rng(5)
    article, loss = outcomes["article"], outcomes["nll"]
    of = [loss[article == one] for one in range(ARTICLES)]
    drawn = [np.concatenate([of[one] for one in rng.integers(0, ARTICLES, ARTICLES)]).mean() for _ in range(4000)]
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975]))
    found = metric_for("perplexity").estimate(outcomes)
    width = high - low
    assert found.low == pytest.approx(low, abs=0.08 * width)
    assert found.high == pytest.approx(high, abs=0.08 * width)


def test_articles_are_resampled_whole_or_in_blocks():
    outcomes = positions()
    together = np.random.default_rng(1).normal(0, 2, ARTICLES)[outcomes["article"]]
    moved = Outcomes(outcomes.task, "clean", {**outcomes.columns, "nll": outcomes["nll"] + 9 + together})
    alone = Outcomes(
        outcomes.task, "clean", {**moved.columns, "nll": np.random.default_rng(2).permutation(moved["nll"])}
    )
    wide, narrow = (metric_for("perplexity").estimate(one) for one in (moved, alone))
    assert math.log(wide.high / wide.low) > 1.5 * math.log(narrow.high / narrow.low)
    found = metric_for("perplexity").estimate(positions(articles=1))
    assert found.n == WORDS // 8
    assert found.low < found.value < found.high


def test_the_paired_test_is_that_of_the_mean_losses():
    """exp is increasing: on every resample of articles the sign of the difference is that of the mean losses."""
    first, second = positions(0), positions(1, shift=0.02)
    found = metric_for("perplexity").paired(first, second)
    of = [np.array([one["nll"][one["article"] == a].sum() for a in range(ARTICLES)]) for one in (first, second)]
    rng, fewer = np.random.default_rng(9), [0, 0]
    for _ in range(2000):
        weight = np.bincount(rng.integers(0, ARTICLES, ARTICLES), minlength=ARTICLES)
        fewer[int(weight @ (of[0] - of[1]) >= 0)] += 1
    expected = min(1.0, 2 * (min(fewer) + 1) / 2001)
    assert found.p_value == pytest.approx(expected, abs=0.1)
    assert (found.lost, found.gained) == (None, None)
    assert metric_for("perplexity").paired(first, positions(0, shift=0.5)).p_value < 0.001


def test_three_perplexities_under_corruption():
    outcomes = grid()
    found = measure(outcomes, RATES)
    for name, rows in {
        "corrupted_perplexity": np.ones(len(outcomes), bool),
        "clean_target_perplexity": outcomes["swapped"] == 0,
        "swapped_perplexity": outcomes["swapped"] == 1,
    }.items():
        of = [math.exp(outcomes["nll"][rows & (outcomes["severity"] == level)].mean()) for level in (1, 2, 3)]
        assert found[name].value == pytest.approx(sum(of) / 3), name
        assert found[name].low < found[name].value < found[name].high
    clean = outcomes.where(outcomes["severity"] == 0)
    assert found["perplexity"].value == pytest.approx(math.exp(clean["nll"].mean()))
    assert leading(found) == "corrupted_perplexity"


def attacked(seed=0, gain=1.0, blocks=30):
    rng = np.random.default_rng(seed)
    words = np.full(blocks, 8)
    words[-1] = 3
    clean = rng.gamma(2.0, 1.0, blocks)
    columns = {name: np.zeros(blocks) for name in TASK.table("attack").columns}
    columns |= {
        "sample": [f"{one:07d}" for one in range(blocks)], "attack": ["hotflip"] * blocks, "words": words,
        "article": np.arange(blocks) // 2, "clean_nll": clean, "nll": clean + gain * rng.random(blocks),
    }  # fmt: skip
    return Outcomes.from_columns(TASK.table("attack"), columns)


def test_perplexity_under_attack_and_its_ratio():
    outcomes = attacked()
    scenario = load_scenario("hotflip-words-1.5", {})[1]
    found, words = measure(outcomes, scenario), outcomes["words"]
    clean, after = (math.exp((words * outcomes[name]).sum() / words.sum()) for name in ("clean_nll", "nll"))
    assert found["clean_block_perplexity"].value == pytest.approx(clean)
    assert found["attacked_perplexity"].value == pytest.approx(after)
    assert found["perplexity_ratio"].value == pytest.approx(after / clean)
    assert 1 < found["perplexity_ratio"].low < found["perplexity_ratio"].high
    assert set(found) == {"clean_block_perplexity", "attacked_perplexity", "perplexity_ratio"}


def test_another_loss_before_the_attack_is_found_on_another_machine_too():
    """There a search may go another way, so what it found is not compared."""
    old, searched = attacked(), attacked(gain=2.0)
    assert differences(old, searched, exact=False) == []
    assert len(differences(old, searched, exact=True)) == len(old)
    other = Outcomes(old.task, old.kind, {**old.columns, "clean_nll": old["clean_nll"] + 0.01 * (old["words"] == 3)})
    (found,) = differences(old, other, exact=False)
    assert set(found.values) == {"clean_nll"}
