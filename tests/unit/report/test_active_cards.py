"""Every number on the cards of the pack `answer-active`, computed again from outcomes alone, and the density of S.

The formulas are those of docs/decisions/0049 for two rows, and of its plan: a family of eight, adjusted by Holm (1979).
"""

import csv
import json
import lzma
import re
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from card_formulas import files, two_sources
from scipy import stats

from robustbench_kpca import load_data, load_model
from robustbench_kpca.models.mixing import densities

PACK = Path(__file__).parents[3] / "leaderboards" / "answer-active"
ARMS = tomllib.loads((PACK / "pack.toml").read_text())["paper"]["arms"]
PROTOCOLS = {
    "AutoAttack fast 4/255": ["autoattack-fast-linf-8_255+eps=4_255"],
    "Worst case of both": ["autoattack-fast-linf-8_255+eps=4_255", "pursuit-pgd20-linf-8_255+eps=4_255"],
    "Outlier tokens": ["outlier-tokens"],
    "Corrupted": ["noise-blur-contrast-32px"],
    "PGD, literal": ["teo2024-pgd"],
    "PGD, corrected": ["teo2024-corrected-pgd"],
}
CARDS = {
    (path.parent.name, answer["column"]): answer
    for path in sorted(PACK.glob("*/board.json"))
    for answer in json.loads(path.read_text())["answers"]
}


def name_of(arm, seed):
    settings = (f"{key}{re.sub('[/:]', '-', str(value))}" for key, value in sorted(arm.get("set", {}).items()))
    return "-".join([arm["recipe"], *settings]) + f"-s{seed}"


@cache
def stands(name, protocol):
    """The share of its pictures that the network answers correctly, by image, in the order of the images."""
    right = defaultdict(list)
    with lzma.open(PACK / "records" / files(PACK)[name, protocol], "rt") as lines:
        for row in csv.DictReader(lines):
            if row.get("severity") != "0":
                right[row["sample"]].append(
                    not row["broken_by"] if "broken_by" in row else row["prediction"] == row["label"]
                )
    return np.array([np.mean(right[sample]) for sample in sorted(right)])


def table(title, column, seeds):
    (arm,) = (arm for arm in ARMS.values() if arm["title"] == title)
    return np.array([np.min([stands(name_of(arm, seed), p) for p in PROTOCOLS[column]], axis=0) for seed in seeds])


def compared(card):
    """Difference, standard error and degrees of freedom of two rows: seeds are blocks, images a second source."""
    seeds = range(20, 20 + card["against"]["seeds"])
    single = table(card["subject"], card["column"], seeds) - table(card["baseline"], card["column"], seeds)
    return two_sources(single, single.mean(1).var(ddof=1), len(single) - 1)


def p_value(card):
    difference, error, freedom = compared(card)
    return 2 * stats.t.sf(abs(difference) / error, freedom)


def test_the_plan_asks_one_question_and_a_family_of_eight_of_which_seven_were_made():
    families = [card["family"] for card in CARDS.values()]
    assert (families.count(None), families.count("secondary")) == (1, 7)
    assert {place: n for place, card in CARDS.items() if (n := card["against"]["seeds"]) != 20} == dict.fromkeys(
        ((name, "AutoAttack fast 4/255") for name in ("half", "paper", "symmetric")), 10
    )


@pytest.mark.parametrize("place", CARDS, ids="-".join)
def test_a_card_follows_from_outcomes(place):
    card, family = CARDS[place], sorted(p_value(card) for card in CARDS.values() if card["family"])
    difference, error, freedom = compared(card)
    low, high = (difference + sign * stats.t.ppf(0.975, freedom) * error for sign in (-1, 1))
    p = p_value(card)
    if card["family"]:
        p = max(min(1.0, (8 - rank) * other) for rank, other in enumerate(family) if other <= p)
    assert card["against"]["difference"] == pytest.approx(difference, abs=1e-9)
    assert (card["against"]["low"], card["against"]["high"]) == pytest.approx((low, high), abs=1e-6)
    assert card["against"]["p_value"] == pytest.approx(p, abs=1e-6)
    same = "equivalent" if max(abs(low), abs(high)) < card["margin"] / 100 else "no difference found"
    assert card["verdict"] == (same if p >= 0.05 else "helps" if difference > 0 else "hurts")


def spelt(card):
    """Return difference and interval in points, as texts about the answer write them."""
    numbers = (100 * card["against"][name] for name in ("difference", "low", "high"))
    return "{:+.1f} [{:+.1f}, {:+.1f}]".format(*numbers).replace("-", "−")


def test_readme_findings_notes_and_changelog_say_what_the_cards_say():
    primary, tokens = CARDS["primary", "Worst case of both"], CARDS["outliers", "Outlier tokens"]
    for name in ("README.md", "docs/findings.md", "leaderboards/answer-active/notes.md", "CHANGELOG.md"):
        assert spelt(primary) in (text := (PACK.parents[1] / name).read_text())
        if name == "docs/findings.md":
            assert spelt(tokens) in text
            assert f"a difference of {100 * primary['against']['least']:.1f} would have been found" in text


def switched_off(pack, models):
    """Predictions that the off switch changes, of how many: clean, and after PGD; over all audits of these models."""
    paths = (PACK.parent / pack / "records" / "audits").glob("*.audit.json")
    audits = [
        audit for path in paths if re.fullmatch(models, (audit := json.loads(path.read_text()))["subject"]["model"])
    ]
    checks = [check["values"] for audit in audits for check in audit["checks"] if check["name"] == "mechanism"]
    return [
        f"{sum(values.get(f'changed {where}', 0) for values in checks):.0f} of "
        f"{sum(values.get(f'predictions {where}', 0) for values in checks):,.0f}"
        for where in ("on clean images", "after PGD")
    ]


@pytest.mark.parametrize(
    ("pack", "models", "text", "page"),
    [
        ("answer", "rpc_.*", "| {} | {} |", "docs/findings.md"),
        ("answer-cifar10", "rpc_.*_fast-.*", "| {} | {} |", "docs/findings.md"),
        ("answer-cifar10", "rpc_.*_fast_adv-.*", "| {} | {} |", "docs/findings.md"),
        ("answer-active", ".*lam1.0-s20", "{1} predictions of the audited", "docs/findings.md"),
        ("league-digits", ".*modelpro_.*losshuber-s0", "({} clean\npredictions change, and {}", "{}/notes.md"),
        ("league-digits", ".*modelrobust_kde_vit_digits-s0", "({}, and {})", "{}/notes.md"),
    ],
)
def test_texts_say_what_audits_saw_without_the_mechanism(pack, models, text, page):
    written = (PACK.parents[1] / page.format(f"leaderboards/{pack}")).read_text()
    assert text.format(*switched_off(pack, models)) in written


@pytest.mark.slow
def test_titles_say_the_density_of_s_and_the_subjects_of_questions_are_active():
    """The rule of the plan: below 5 % on the clean test images there is no verdict."""
    images, _ = load_data("digits", "test").tensors()
    for arm in ARMS.values():
        if arm["recipe"] != "rpc_symvit_digits" or arm["set"]["model_options.lam"] == np.inf:
            continue
        options = {key.removeprefix("model_options."): value for key, value in arm["set"].items()}
        names = [name_of(arm, seed) for seed in arm["seeds"]]
        models = [
            load_model(arm["recipe"], PACK / "trainings" / name / f"{name}.safetensors", **options) for name in names
        ]
        share = np.mean([densities(model, images)[0] for model in models])
        assert 100 * share == pytest.approx(float(arm["title"].split("S: ")[1].split(" %")[0]), abs=0.06)
        assert ("inactive" in arm["title"]) == (share < 0.05)
        assert share >= 0.05 or arm["title"] not in {card["subject"] for card in CARDS.values()}
