"""The answer under a board's title, on records whose answers are known."""

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats
from stand_ins import posing_as

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.web.as_markdown import markdown
from robustbench_kpca._core.web.document import Document
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.metrics.shared.power import detectable_difference
from robustbench_kpca.records.audit import Audit
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.trainings import OverSamples, compare, residual_variance
from robustbench_kpca.report.answers import Answer, answer, answers, in_families
from robustbench_kpca.report.board import Board, Run
from robustbench_kpca.report.board_page import _lead
from robustbench_kpca.report.board_spec import BoardSpec, Column, Row
from robustbench_kpca.report.cards import card, numbered
from robustbench_kpca.report.difference import difference_between
from robustbench_kpca.report.lead import contrast
from robustbench_kpca.report.notes import caption, ranking
from robustbench_kpca.report.power import detectable, power_of
from robustbench_kpca.report.question import Question
from robustbench_kpca.report.ranking import Group
from robustbench_kpca.report.ranking import ranking as ranks_of

N = 400
ASKED = Question(subject="RPC", baseline="Plain", ablation="Identity", column="PGD")
COLUMN = Column(title="PGD", protocol="pgd20-linf-1_255", metric="robust_accuracy", data="d", split="test")
COLUMN_METRIC = metric_for("robust_accuracy")


def audit(*flags, level="full"):
    checks = [SimpleNamespace(name=name) for name in flags]
    plan = SimpleNamespace(level=level, images=64, eps=8 / 255)
    return posing_as(Audit, flags=checks, checks=checks, plan=plan)


def record(right, found):
    columns = {"sample": np.array([f"s{i}" for i in range(N)], object), "label": np.zeros(N, np.int64)}
    columns |= {"broken_by": np.where(right, "", "pgd").astype(object)}
    outcomes = Outcomes("classification", "attack", columns)
    metric = metric_for("robust_accuracy")
    return posing_as(
        Record, kind="attack", audit=found, outcomes=outcomes, metrics={metric.name: metric.estimate(outcomes)},
        outcomes_file=SimpleNamespace(sha256=outcomes.digest()),
        spec=SimpleNamespace(data=SimpleNamespace(name="d", task="classification", n=N, known=None)),
    )  # fmt: skip


def board(shares, seeds=3, spread=0.01, flags=(), audited=True, level="full", noise=0.02):
    """Rows whose trainings have about these shares of the same images right; harder images are lost first.

    `spread`: between neighbouring trainings of a row, or by its title.
    """
    rng = np.random.default_rng(0)
    hard = rng.permutation(N) / N
    rows = [Row(title=title, models=tuple(f"{title}-s{k}" for k in range(seeds))) for title in shares]
    spec = BoardSpec(title="t", intro="", data="d", split="test", seed=0, row=tuple(rows), rank_by="PGD",
                     column=(COLUMN,), question=(ASKED,))  # fmt: skip
    runs = []
    for row in rows:
        for place, model in enumerate(row.models):
            apart = spread.get(row.title, 0.01) if isinstance(spread, dict) else spread
            share = shares[row.title] + apart * (place - (seeds - 1) / 2)
            right = hard + rng.normal(0, noise, N) < share
            found = audit(*(flags if row.title == "RPC" else ()), level=level) if audited else None
            runs.append(Run(model, spec.needed(COLUMN)[0], "ready", record(right, found)))
    return Board("b", spec, tuple(runs), "remake", "plan")


def test_it_helps_or_hurts_against_baseline_and_control():
    made = answer(board({"Plain": 0.3, "RPC": 0.5, "Identity": 0.3}), ASKED)
    assert made.verdict == "helps"
    assert (made.against.other, made.control.other) == ("Plain", "Identity")
    assert (made.samples, made.trainings, made.planned) == (N, 3, 3)
    assert made.audit == "no audit of “RPC” (64 images at 8/255) raises a flag that its gradients hide anything"
    made = answer(board({"Plain": 0.6, "RPC": 0.3, "Identity": 0.6}), ASKED)
    assert made.verdict == "hurts"
    assert made.against.difference < 0
    made = answer(board({"Plain": 0.1, "RPC": 0.9, "Identity": 0.1}, seeds=1), ASKED)
    assert made.verdict == "not yet"
    assert (made.against.low, made.against.p_value) == (None, None)
    assert "400 samples of d; 1 training; no audit flag" in markdown(Document("t", [card(made, {})]))


@pytest.mark.parametrize(
    ("control", "verdict"), [(0.3, "helps"), (0.5, "no difference found"), (0.7, "worse than its control")]
)
def test_what_only_beats_its_baseline_does_not_help(control, verdict):
    assert answer(board({"Plain": 0.3, "RPC": 0.5, "Identity": control}), ASKED).verdict == verdict


def test_the_difference_has_the_interval_that_belongs_to_its_test():
    made = board({"Plain": 0.3, "RPC": 0.5, "Identity": 0.3})
    rows = ("RPC", "Plain", "Identity")
    cells = {title: made.trainings(title, COLUMN) for title in rows}
    table = {row: np.array([cell[0].outcomes["broken_by"] == "" for cell in of], float) for row, of in cells.items()}
    against = answer(made, ASKED).against
    assert against.difference == pytest.approx(table["RPC"].mean() - table["Plain"].mean())
    assert (against.low, against.high) == pytest.approx(by_blocks(table, rows, 0.975))
    assert (against.inner_low, against.inner_high) == pytest.approx(by_blocks(table, rows, 0.95))
    assert against.seeds == 3
    alone = Board("b", made.spec, tuple(one for one in made.runs if "Identity" not in one.model), "", "")
    against = answer(alone, ASKED).against
    assert (against.low, against.high) == pytest.approx(by_blocks(table, rows[:2], 0.975))
    assert answer(alone, ASKED).verdict == "not yet"


@pytest.mark.parametrize("spread", [0.005, 0.01, 0.02, 0.03])
@pytest.mark.parametrize(("share", "sign"), [(0.46, 1), (0.32, -1)])
def test_an_interval_without_zero_is_a_verdict_and_the_other_way_round(share, sign, spread):
    made = answer(board({"Plain": 0.40, "RPC": share, "Identity": 0.38}, spread=spread), ASKED)
    for duel in (made.against, made.control):
        assert duel.sign(made.metric) == (sign if duel.low * duel.high > 0 else 0)


def by_blocks(table, titles, confidence):
    """The interval of the first two rows: mean squares by sums over cells, as rivals of this formula write them."""
    numbers = np.array([table[title].mean(1) for title in titles])
    arms, k = numbers.shape
    rest = numbers - numbers.mean(1)[:, None] - numbers.mean(0) + numbers.mean()
    pooled, alone = 2 * (rest**2).sum() / ((arms - 1) * (k - 1)), np.var(numbers[0] - numbers[1], ddof=1)
    noisier = arms > 2 and alone / (((arms - 1) * pooled - alone) / (arms - 2)) > stats.f.isf(
        0.1, k - 1, (arms - 2) * (k - 1)
    )
    freedom = (k - 1) * (1 if noisier else arms - 1)
    d = table[titles[0]] - table[titles[1]]
    seed, image = N * max(alone, pooled), k * d.mean(0).var(ddof=1)
    left = ((d - d.mean(1)[:, None] - d.mean(0) + d.mean()) ** 2).sum() / ((k - 1) * (N - 1))
    total = max(seed + image - left, seed, image)
    df = total**2 / (seed**2 / freedom + image**2 / (N - 1) + left**2 / ((k - 1) * (N - 1)))
    return stats.t.interval(confidence, df, loc=d.mean(), scale=np.sqrt(total / (k * N)))


def test_small_differences_are_not_found_and_the_card_says_which_would_be():
    made = board({"Plain": 0.40, "RPC": 0.41, "Identity": 0.41}, spread=0.04)
    said = answer(made, ASKED)
    assert said.verdict == "no difference found"
    least = detectable(made, COLUMN)
    assert (least.trainings, least.samples) == (3, N)
    assert 0.01 < least.difference < 0.1
    assert f"“PGD”: {100 * least.difference:.1f} points (3 seeds, 400 samples)" in power_of(made)
    two = detectable(made, COLUMN, ("RPC", "Plain"), 0.025)
    assert two.difference > detectable(made, COLUMN, ("RPC", "Plain")).difference
    assert said.against.least == two.difference
    page = markdown(Document("t", [card(said, {"RPC": "Robust"})]))
    assert "### Does Robust help?\n\n**no difference found**\n\n" in page
    assert f"above {100 * two.difference:.1f} points" in page
    assert "400 samples of d; 3 trainings; no audit flag at 8/255." in page


def test_a_question_without_a_control_makes_one_comparison():
    made = board({"Plain": 0.40, "RPC": 0.41, "Identity": 0.41}, spread=0.04)
    said, both = answer(made, ASKED.model_copy(update={"ablation": None, "margin": 40})), answer(made, ASKED)
    assert said.against.p_value == pytest.approx(both.against.p_value / 2)
    assert (said.against.low, said.against.high) == (both.against.inner_low, both.against.inner_high)
    assert (said.control, said.verdict, said.has_all_trainings) == (None, "equivalent", True)
    assert "the interval of 95 %" in markdown(Document("t", [card(said, {})]))
    clear = answer(board({"Plain": 0.3, "RPC": 0.5, "Identity": 0.5}), ASKED.model_copy(update={"ablation": None}))
    assert clear.verdict == "helps"


def test_a_family_over_several_boards_is_adjusted_together_with_what_was_not_made():
    asked = ASKED.model_copy(update={"ablation": None, "family": "secondary"})
    shares = {"clear": 0.50, "near": 0.4075}
    boards = {
        name: board({"Plain": 0.40, "RPC": share, "Identity": 0.40}, seeds=8, spread=0.02)
        for name, share in shares.items()
    }
    boards = {name: replace(of, spec=of.spec.model_copy(update={"question": (asked,)})) for name, of in boards.items()}
    raw = [answer(of, asked.model_copy(update={"family": None})).against.p_value for of in boards.values()]
    assert raw[0] < raw[1] < 0.05 < 4 * raw[1], "one survives, and one does not"
    said = [answer(of, asked) for of in in_families(boards, {"secondary": 5}).values()]
    assert [one.against.p_value for one in said] == pytest.approx([5 * raw[0], 4 * raw[1]])
    assert [(one.verdict, one.comparisons) for one in said] == [("helps", 5), ("no difference found", 5)]
    assert "Holm for the 5 comparisons" in markdown(Document("t", numbered(said, {})))
    assert answer(boards["clear"], asked).against.p_value == 1, "nothing was adjusted"
    single = board({"Plain": 0.4, "RPC": 0.5, "Identity": 0.4}, seeds=1)
    single = replace(single, spec=single.spec.model_copy(update={"question": (asked,)}))
    unmade = answer(in_families({"single": single}, {"secondary": 5})["single"], asked)
    assert (unmade.against.p_value, unmade.comparisons) == (None, 5)


def test_cards_begin_with_what_matters_and_name_other_boards():
    idle = replace(answer(board({"Plain": 0.3, "RPC": 0.5, "Identity": 0.3}), ASKED), idle="mechanism is inactive: why")
    said = "In Robust the mechanism is inactive: why. So Robust without its mechanism is compared with Plain."
    assert markdown(Document("t", [card(idle, {"RPC": "Robust"})])).split("\n\n")[3] == said
    made = answer(board({"Plain": 0.3, "RPC": 0.5, "Identity": 0.3}), ASKED)
    page = markdown(Document("t", [card(made, {}, "table-1")]))
    assert "### [PGD (d)](table-1/README.md): Does RPC help?" in page
    assert "How this is decided" not in page
    assert Answer.of(json.loads(json.dumps(made.content())), ASKED, COLUMN_METRIC) == made


def test_a_card_says_the_difference_of_the_numbers_in_the_table():
    """39.74 and 39.46 are 39.7 and 39.5: +0.2, though the difference is 0.28; of other seeds it is their own."""
    made = answer(board({"Plain": 0.3, "RPC": 0.5, "Identity": 0.3}), ASKED)
    duel = replace(made.against, value=0.3946, difference=0.0028)
    assert "+0.2 [" in card(replace(made, value=0.3974, against=duel), {}).blocks[0].text
    assert "+0.9 [" in card(replace(made, value=0.3974, against=replace(duel, difference=0.009)), {}).blocks[0].text
    assert COLUMN_METRIC.unit.difference(0.5, 0.5) == "+0.0"
    assert metric_for("perplexity").unit.difference(1234.4, 20.126) == "+1213.87"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"flags": ("gradients", "scale")}, "raise flags (gradients, scale)"),
        ({"level": "quick"}, "8/255; a quick audit makes no black-box attack"),
        ({"audited": False}, "was not audited throughout"),
    ],
)
def test_what_audits_say(how, said):
    assert said in answer(board({"Plain": 0.3, "RPC": 0.5, "Identity": 0.3}, **how), ASKED).audit


def test_rows_of_several_trainings_share_a_rank_where_their_spread_does_not_tell_them_apart():
    clear = board({"Plain": 0.30, "RPC": 0.50, "Identity": 0.31})
    assert clear.ranks == {"RPC": 1, "Identity": 2, "Plain": 2}
    assert set(board({"Plain": 0.40, "RPC": 0.42, "Identity": 0.41}, spread=0.05).ranks.values()) == {1}
    mixed = [run for run in clear.runs if run.model not in ("RPC-s1", "RPC-s2")]
    alone = Board("b", clear.spec, tuple(mixed), "", "")
    assert alone.ranks == {"RPC": None, "Plain": 1, "Identity": 1}, "one training out of three is compared with none"
    assert alone.winners == {"PGD": []}
    assert difference_between(alone, "RPC", "Plain", COLUMN) is None


def test_ranks_and_bold_hold_p_values_against_the_number_of_other_rows():
    """Right on the first 40, 34 and 30 of the samples: McNemar by hand is 2 x 0.5^6, 2 x 0.5^10 and 2 x 0.5^4."""
    made = board({"RPC": 40 / N, "Plain": 34 / N, "Identity": 30 / N}, seeds=1, noise=0)
    first, second, third = "RPC", "Plain", "Identity"
    assert made.paired(first, second, COLUMN).p_value == pytest.approx(2 * 0.5**6)
    assert made.paired(first, third, COLUMN).p_value == pytest.approx(2 * 0.5**10)
    assert made.paired(second, third, COLUMN).p_value == pytest.approx(2 * 0.5**4)
    assert made.level(first, COLUMN) == pytest.approx(0.05 / 2)
    assert made.ranks == {first: 1, second: 1, third: 2}
    assert made.winners == {"PGD": []}, "the first is not told apart from the second"
    without = Board("b", made.spec, tuple(run for run in made.runs if run.model != "Identity-s0"), "", "")
    assert without.level(first, COLUMN) == 0.05, "a row without a number is no rival"
    assert without.ranks == {first: 1, second: 2, third: None}
    assert without.winners == {"PGD": [first]}


def test_rows_of_several_trainings_and_of_one_are_ranked_and_bold_among_themselves():
    """The singles are far worse than the others, and compared with none of them."""
    several = board({"RPC": 0.60, "Plain": 0.40, "Identity": 0.40})
    single = board({"RPC": 0.30, "Plain": 0.10, "Identity": 0.10}, seeds=1)
    renamed = [replace(run, model=f"one {run.model}") for run in single.runs]
    rows = tuple(Row(title=f"one {row.title}", models=(f"one {row.title}-s0",)) for row in single.spec.row)
    spec = several.spec.model_copy(update={"row": several.spec.row + rows})
    both = Board("b", spec, (*several.runs, *renamed), "", "")
    assert both.level("RPC", COLUMN) == both.level("one RPC", COLUMN) == 0.05 / 2
    assert both.winners == {"PGD": ["RPC", "one RPC"]}
    assert {title: both.ranks[title] for title in ("RPC", "Plain", "one RPC", "one Plain")} == {
        "RPC": 1, "Plain": 2, "one RPC": 1, "one Plain": 2
    }  # fmt: skip
    assert all(test in caption(both) for test in ("McNemar", "blocks"))
    (line,) = _lead(both, {})
    assert line.text.text.endswith("not compared: 3 rows of one training.")
    assert "McNemar" not in caption(several)
    assert "blocks" not in caption(single)


def test_no_place_begins_later_or_ends_later_than_that_of_a_worse_value():
    """By hand: B is clearly worse than A, and C, which spreads more, than none."""
    level = {"A": 0.9, "B": 0.8, "C": 0.7}
    p_values = np.array([[1, 0.001, 1], [1, 1, 1], [1, 1, 1]])
    made = ranks_of([*level], [Group(level, 0.05, p_values)])
    assert made.ranks == {"A": 1, "B": 2, "C": 1}
    assert [made.place(title) for title in level] == ["1–2", "1–3", "1–3"]


def test_what_the_correction_of_a_protocol_changes_is_said_first():
    literal, corrected = (COLUMN.model_copy(update={"title": f"PGD, {kind}"}) for kind in ("literal", "corrected"))
    made = board({"RPC": 0.6, "Plain": 0.4, "Identity": 0.4})
    assert contrast(made) == ""
    spec = made.spec.model_copy(update={"column": (literal, corrected), "rank_by": "PGD, corrected", "question": ()})
    both = replace(made, spec=spec)
    assert contrast(both) == "PGD, robust accuracy: 40.2 to 59.9 % as the authors ran it, 40.2 to 59.9 % corrected."
    (found,) = _lead(both, {})
    assert found.text.text.startswith(contrast(both))
    fewer = replace(both, runs=tuple(run for run in both.runs if run.model != "RPC-s0"))
    assert "59.9" not in contrast(fewer), "a row that is not whole does not count"


def test_boards_of_one_row_or_of_too_many_are_not_ranked(monkeypatch):
    one = board({"RPC": 0.6, "Plain": 0.4, "Identity": 0.4})
    alone = Board("b", one.spec, tuple(run for run in one.runs if run.model.startswith("RPC")), "", "")
    assert "Bold" not in caption(alone)
    assert ranking(alone) == ""
    monkeypatch.setattr("robustbench_kpca.report.ranking.MOST_TESTS", 2)
    made = board({"Plain": 0.40, "RPC": 0.41, "Identity": 0.39}, spread=0.04)
    assert made.ranks == {"RPC": 1, "Plain": 2, "Identity": 3}
    assert "there are too many to test" in ranking(made)


def test_ranks_never_say_more_than_the_sentence():
    """Differences about as large as chance makes them, where one of several corrections would decide."""
    parted = 0
    for step in range(24):
        shares = {"Plain": 0.40, "RPC": 0.41 + 0.002 * step, "Identity": 0.39}
        made = board(shares, spread={"Identity": 0.05}, noise=0.2)
        apart = made.ranks["RPC"] != made.ranks["Plain"]
        parted += apart
        assert not apart or answer(made, ASKED).against.sign(COLUMN_METRIC) != 0
    assert 0 < parted < 24, "some are parted and some are not"


def test_one_training_out_of_several_is_compared_with_no_other():
    """Neither by a test, nor by an interval, nor by a sentence about power."""
    whole = board({"Plain": 0.30, "RPC": 0.50, "Identity": 0.31})
    firsts = Board("b", whole.spec, tuple(run for run in whole.runs if run.model.endswith("-s0")), "", "")
    assert set(firsts.ranks.values()) == {None}
    assert firsts.paired("RPC", "Plain", COLUMN) is None
    assert difference_between(firsts, "RPC", "Plain", COLUMN) is None
    assert detectable(firsts, COLUMN) is None
    assert power_of(firsts) == ""
    said = answer(firsts, ASKED)
    assert said.verdict == "not yet"
    assert (said.trainings, said.planned, said.against.trainings, said.against.planned) == (1, 3, 1, 3)
    several = [run for run in whole.runs if run.model in ("RPC-s0", "RPC-s1", "Plain-s0")]
    said = answer(Board("b", whole.spec, tuple(several), "", ""), ASKED)
    assert (said.trainings, said.against.trainings, said.against.p_value) == (2, 1, None)


def test_power_takes_the_spread_of_all_rows_and_no_smaller_one_than_chance():
    # Two trainings that agree by chance do not show that trainings of their recipe agree.
    shares = {"Plain": 0.40, "RPC": 0.41, "Identity": 0.41, "Fourth": 0.45}
    even, uneven = (
        board(shares, seeds=2, spread=dict.fromkeys(shares, 0.0) | {"Fourth": spread}) for spread in (0.0, 0.2)
    )
    found = [detectable(made, COLUMN, ("RPC", "Plain")).difference for made in (even, uneven)]
    assert found[1] > 2 * found[0]
    assert found[1] == pytest.approx(by_hand(uneven, ("RPC", "Plain")))
    # Trainings that have other images right, and as many of them by chance.
    rng, made = np.random.default_rng(0), board({"Plain": 0.40, "RPC": 0.41, "Identity": 0.41}, seeds=2)
    runs = [replace(run, record=record(rng.permutation(N) < 0.4 * N, None)) for run in made.runs]
    made = Board("b", made.spec, tuple(runs), "", "")
    assert {one.record.metrics["robust_accuracy"].value for one in runs} == {0.4}
    assert detectable(made, COLUMN).difference == pytest.approx(by_hand(made, ("Plain", "RPC", "Identity")))
    assert detectable(made, COLUMN).difference > 0.05


def by_hand(made, titles):
    """The median over neighbours of the difference by the formula, with the spread of all rows or of the two."""
    tables = {
        row.title: np.array([cell[0].outcomes["broken_by"] == "" for cell in made.trainings(row.title, COLUMN)], float)
        for row in made.spec.rows
    }
    gaps = []
    for one, other in itertools.pairwise(title for title in made.ranked() if title in titles):
        d, rows = tables[one] - tables[other], [tables[one], tables[other]]
        rows += [table for title, table in tables.items() if title not in (one, other)]
        numbers = np.array([table.mean(1) for table in rows])
        alone, pooled = d.mean(1).var(ddof=1) / 2, residual_variance(numbers)
        chance = np.var(d[0] - d[1], ddof=1) / 4 / N  # two trainings each
        arms = compare(numbers, OverSamples.of(d)).recipes
        spread = np.sqrt(max(alone if arms == 2 else pooled, chance))
        gaps.append(detectable_difference((arms, 2), spread, OverSamples.of(d)))
    return np.median(gaps)


def test_no_power_is_claimed_without_a_spread_or_of_one_sample(monkeypatch):
    made = board({"Plain": 2.0, "RPC": 2.0, "Identity": 2.0}, spread=0.0)  # everything is right in all trainings
    assert {made.estimate(title, COLUMN).value for title in ("Plain", "RPC")} == {1.0}
    assert detectable(made, COLUMN) is None
    assert power_of(made) == ""
    # Its error is unknown, so no difference can be named; nothing else of the page fails.
    monkeypatch.setitem(globals(), "N", 1)
    for seeds in (1, 3):
        made = board({"Plain": 0.3, "RPC": 0.5, "Identity": 0.3}, seeds=seeds)
        assert detectable(made, COLUMN) is None
        assert power_of(made) == ""
        assert answers(made)


def test_rows_without_records():
    made = board({"Plain": 0.3, "RPC": 0.5, "Identity": 0.3})

    def without(*rows):
        return Board("b", made.spec, tuple(run for run in made.runs if run.model[:-3] not in rows), "", "")

    for absent in ("RPC", "Plain"):
        said = answer(without(absent), ASKED)
        assert (said.verdict, said.against) == ("not yet", None)
        assert "RPC or Plain has no number in PGD yet." in markdown(Document("t", [card(said, {})]))
    assert answer(without("Identity"), ASKED).control is None


def asked(margin):
    return ASKED.model_copy(update={"margin": margin})


def test_it_is_equivalent_to_its_baseline_where_their_interval_of_95_percent_lies_inside_the_margin():
    made = board({"Plain": 0.400, "RPC": 0.405, "Identity": 0.4025}, spread=0.04)
    duel = answer(made, ASKED).against
    least = 100 * max(-duel.inner_low, duel.inner_high)
    said = answer(made, asked(least + 0.01))
    assert (said.verdict, said.verdict_with_margin) == ("equivalent", f"equivalent within ± {least + 0.01:g} points")
    assert answer(made, asked(least - 0.01)).verdict == "no difference found"
    assert answer(made, ASKED).verdict == "no difference found"
    assert -duel.low > -duel.inner_low, "97.5 % is wider"
    assert duel.high > duel.inner_high
    content = said.content()
    assert (content["margin"], content["verdict"]) == (least + 0.01, "equivalent")
    assert f"**equivalent within ± {least + 0.01:g} points**" in markdown(Document("t", [card(said, {})]))


@pytest.mark.parametrize(("least", "said"), [(0.000, "below 1 %"), (0.995, "above 99 %"), (0.012, "are ruled out")])
def test_rows_that_an_attack_leaves_nothing_or_all_of_are_said_to_be_so(least, said):
    shares = {name: least + more for name, more in (("Plain", 0.0), ("RPC", 0.002), ("Identity", 0.001))}
    equal = answer(board(shares, spread=0.0, noise=0.001), asked(3))
    assert equal.verdict == "equivalent"
    assert said in markdown(Document("t", [card(equal, {})]))


def test_a_difference_that_is_found_is_not_equivalent_however_small():
    made = board({"Plain": 0.30, "RPC": 0.50, "Identity": 0.30})
    assert answer(made, asked(50)).verdict == "helps"
    made = board({"Plain": 0.50, "RPC": 0.50, "Identity": 0.30})
    assert answer(made, asked(50)).control.sign(COLUMN_METRIC) == 1
    assert answer(made, asked(50)).verdict == "equivalent", "to its baseline, whatever the control is"
    made = board({"Plain": 0.50, "RPC": 0.50, "Identity": 0.70})
    assert answer(made, asked(50)).verdict == "worse than its control"


@pytest.mark.parametrize("margin", [0, -1, float("inf"), "2"])
def test_a_margin_is_a_positive_number(margin):
    with pytest.raises(ValidationError, match="margin"):
        Question(**(ASKED.model_dump() | {"margin": margin}))


def test_rows_are_compared_on_the_seeds_that_both_have():
    """The fourth training of RPC is far off, and no other row has its seed; with one shared seed nothing is tested."""
    made = board({"Plain": 0.30, "RPC": 0.50, "Identity": 0.31})
    rows = [row.model_copy(update={"seeds": (5, 6, 7)}) for row in made.spec.row]
    rows[1] = rows[1].model_copy(update={"models": (*rows[1].models, "RPC-s3"), "seeds": (5, 6, 7, 8)})
    runs = (*made.runs, replace(made.runs[0], model="RPC-s3"))
    more = Board("b", made.spec.model_copy(update={"row": tuple(rows)}), runs, "", "")
    assert more.estimate("RPC", COLUMN).value < made.estimate("RPC", COLUMN).value
    assert answer(more, ASKED).against == answer(made, ASKED).against
    rows[1] = rows[1].model_copy(update={"seeds": (7, 1, 2, 3)})
    apart = Board("b", made.spec.model_copy(update={"row": tuple(rows)}), runs, "", "")
    said = answer(apart, ASKED)
    assert (said.verdict, said.against.p_value) == ("not yet", None)
    assert "They share fewer than two seeds, so nothing is tested." in markdown(Document("t", [card(said, {})]))
    assert apart.ranks["RPC"] == 1, "it is compared with none"


@pytest.mark.parametrize("seeds", [(1, 1, 2), (1, 2)])
def test_a_row_has_another_seed_for_each_model(seeds):
    with pytest.raises(BadInputError, match="row 'RPC'"):
        Row(title="RPC", models=("a", "b", "c"), seeds=seeds)


@pytest.mark.parametrize(("field", "value"), [("subject", "Nobody"), ("column", "Nothing")])
def test_questions_about_what_is_not_there(field, value):
    spec = board({"Plain": 0.3, "RPC": 0.5, "Identity": 0.3}).spec
    asked = spec.question[0].model_dump() | {field: value}
    with pytest.raises(BadInputError, match=f"question about '{value}'"):
        BoardSpec(**(spec.model_dump() | {"question": (asked,)}))
