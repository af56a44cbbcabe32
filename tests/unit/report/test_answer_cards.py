"""Every number on the cards of the planned answers and of the league, computed again from outcomes alone.

The formulas are those of docs/decisions/0049, written out here: seeds are blocks, images a second source.
`records/trainings.py` is not used.
"""

import csv
import json
import lzma
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from card_formulas import files, residual, two_sources
from scipy import stats

BOARDS = Path(__file__).parents[3] / "leaderboards"
PLANNED = {
    "ViT": "vit", "SymViT": "symvit", "RPC-SymViT, first layer": "rpc_symvit",
    "Identity-SymViT, first layer": "identity_symvit",
}  # fmt: skip
AGAINST = ", adversarial"
"""The end of the title of an arm that was trained against attacks."""
STEMS = {
    "AutoAttack fast 4/255": "autoattack-fast-linf-8_255+eps=4_255",
    "AutoAttack fast 8/255": "autoattack-fast-linf-8_255",
    "AutoAttack fast 16/255": "autoattack-fast-linf-8_255+eps=16_255", "PGD, literal": "teo2024-pgd",
    "PGD, corrected": "teo2024-corrected-pgd", "2 pixels, search not flat": "l0-8+eps=2", "1 token": "patches-1",
    "2 pixels, both searches": "l0-8+eps=2 pixel-pairs", "2 pixels": "l0-8+eps=2 pixel-pairs+eps=2",
    "Pursuit PGD-20 4/255": "pursuit-pgd20-linf-8_255+eps=4_255",
}  # fmt: skip


def arms(pack):
    """Return the title of each arm -> the names of its records, up to the seed."""
    return {
        arm["title"]: "-".join([arm["recipe"], *(f"{key}{value}" for key, value in sorted(arm.get("set", {}).items()))])
        for arm in tomllib.loads((BOARDS / pack / "pack.toml").read_text())["paper"]["arms"].values()
    }


NAMES = {
    "answer": {title + end: f"{name}_digits{'_adv' * bool(end)}-epochs100" for title, name in PLANNED.items()
               for end in ("", AGAINST)},
    "answer-cifar10": {title + end: f"{name}_cifar_fast{'_adv' * bool(end)}-storagefp16"
                       for title, name in PLANNED.items() for end in ("", AGAINST)},
    "league-digits": arms("league-digits"), "league-rivals": arms("league-rivals"),
}  # fmt: skip
"""Pack -> title of an arm -> the names of its records, up to the seed."""
SEEDS = {"answer": range(10, 20), "answer-cifar10": range(10, 20), "league-digits": range(5),
         "league-rivals": range(40, 46)}  # fmt: skip
CARDS = [
    (pack, answer)
    for pack in NAMES
    for path in sorted((BOARDS / pack).glob("*/board.json"))
    for answer in json.loads(path.read_text())["answers"]
]


def outcomes(pack, arm, seed, stem):
    file = files(BOARDS / pack)[f"{NAMES[pack][arm]}-s{seed}", stem]
    with lzma.open(BOARDS / pack / "records" / file, "rt") as lines:
        return [*csv.DictReader(lines)]


def stands(pack, arm, seed, column):
    of_all = [outcomes(pack, arm, seed, stem) for stem in STEMS[column].split()]
    return {rows[0]["sample"]: float(not any(row["broken_by"] for row in rows)) for rows in zip(*of_all, strict=True)}


@cache
def table(pack, arm, column):
    """Shape (seeds, n): a row for each seed."""
    rows = [stands(pack, arm, seed, column) for seed in SEEDS[pack]]
    assert len({tuple(row) for row in rows}) == 1, "the same images"
    return np.array([[*row.values()] for row in rows])


def compared(pack, first, second, column):
    """Return the difference, its standard error, degrees of freedom, and how many rows lend their spread."""
    single = table(pack, first, column) - table(pack, second, column)
    seeds = len(single)
    alone = single.mean(1).var(ddof=1)
    arms = [arm for arm in NAMES[pack] if arm.endswith(AGAINST) == first.endswith(AGAINST)]
    pooled, pairs = 2 * residual(np.array([table(pack, arm, column).mean(1) for arm in arms])), len(arms) - 1
    others = (pairs * pooled - alone) / max(pairs - 1, 1)
    apart = pairs > 1 and alone / others > stats.f.ppf(0.9, seeds - 1, (pairs - 1) * (seeds - 1))
    by_seed, freedom = max(alone, pooled), (1 if apart else pairs) * (seeds - 1)
    return *two_sources(single, by_seed, freedom), 2 if apart else len(arms)


def test_every_question_is_answered_and_the_pursuit_breaks_no_image_more():
    assert [*Counter(pack for pack, _ in CARDS).values()] == [4, 5, 7, 4], "of answer, answer-cifar10 and the leagues"
    # What `pursuit.toml` and the notes say of the ten RPC networks that were trained against attacks.
    of_all, of_pursuit = (
        table("answer-cifar10", f"RPC-SymViT, first layer{AGAINST}", column)
        for column in ("AutoAttack fast 4/255", "Pursuit PGD-20 4/255")
    )
    assert (of_pursuit >= of_all).all()
    assert [f"{100 * part.mean():.1f}" for part in (of_pursuit, of_all)] == ["42.0", "39.7"]
    assert "42.0 %, AutoAttack fast 39.7 %" in (BOARDS / "answer-cifar10" / "notes.md").read_text()


def p_of(difference, error, freedom, _):
    return 2 * stats.t.sf(abs(difference) / error, freedom)


@pytest.mark.parametrize(
    ("pack", "card"), CARDS, ids=[f"{pack}, {card['subject']}, {card['column']}" for pack, card in CARDS]
)
def test_a_card_follows_from_outcomes(pack, card):
    """Two comparisons, which hold jointly, or one of a family of four, adjusted by Holm (1979)."""
    assert card["value"] == pytest.approx(table(pack, card["subject"], card["column"]).mean(), abs=1e-9)
    signs, inside = [], []
    duels = [(card["against"], card["baseline"]), (card["control"], card["ablation"])][: 2 if card["ablation"] else 1]
    for duel, other in duels:
        difference, error, freedom, rows = compared(pack, card["subject"], other, card["column"])
        p_value = min(1.0, len(duels) * p_of(difference, error, freedom, rows))
        if card["family"]:
            family = sorted(p_of(*compared(pack, c["subject"], other, c["column"])) for at, c in CARDS if at == pack)
            p_value = max(min(1.0, (4 - rank) * one) for rank, one in enumerate(family) if one <= p_value)
        joint = 1 - 0.05 / len(duels)
        ends = {
            level: [difference + sign * stats.t.ppf((1 + level) / 2, freedom) * error for sign in (-1, 1)]
            for level in (0.95, joint)
        }
        assert duel["value"] == pytest.approx(table(pack, other, card["column"]).mean(), abs=1e-9)
        assert duel["difference"] == pytest.approx(difference, abs=1e-9)
        assert (duel["seeds"], duel["rows"]) == (len(SEEDS[pack]), rows)
        assert duel["p_value"] == pytest.approx(p_value, abs=1e-6)
        assert [duel["low"], duel["high"]] == pytest.approx(ends[joint], abs=1e-6)
        assert [duel["inner_low"], duel["inner_high"]] == pytest.approx(ends[0.95], abs=1e-6)
        signs.append(0 if p_value >= 0.05 else np.sign(difference))
        inside.append(max(map(abs, ends[0.95])))
    margin = (card["margin"] or 0) / 100
    same = "equivalent" if inside[0] < margin else "no difference found"
    less = "hurts" if signs[0] < 0 else "worse than its control" if signs[-1] < 0 else ""
    assert card["verdict"] == (less or ("helps" if min(signs) > 0 else "no difference found" if signs[0] else same))
    if card["family"]:
        page = (BOARDS / pack / "table-1" / "README.md").read_text()
        assert (f"among 4 comparisons: adjusted p = {p_value:.2g}." in page) == (ends[0.95][0] > 0 and p_value >= 0.05)


SEARCHED = {
    "answer": ["SymViT", "RPC-SymViT, first layer"],
    "league-digits": [f"Softmax{AGAINST}", f"ProAttention, MCP{AGAINST}"],
    "league-rivals": ["Softmax", "ProAttention, MCP", "Cosine", "Differential", "Kernel density"],
}
TELL = {
    "answer": [BOARDS / "answer" / "pixels.toml", BOARDS / "league-digits" / "table-1.toml"],
    "league-digits": [BOARDS / "league-digits" / "table-2.toml"],
}
"""What states how much a longer search leaves, beside the findings."""
PASSES = (500, 1500, 2000, 2533, 5067)
"""Of `pixel-pairs`, which spends the last number on an image that it does not break; the one before is its half."""


@pytest.mark.parametrize("pack", SEARCHED)
def test_what_the_longer_search_for_two_pixels_breaks_and_when(pack, monkeypatch):
    notes, findings = (
        path.read_text() for path in (BOARDS / pack / "notes.md", BOARDS.parent / "docs" / "findings.md")
    )
    planned = pack == "league-rivals"
    stem, both = ("pixel-pairs+eps=2", "") if planned else ("pixel-pairs", ", both searches")
    made = [{seed for seed in SEEDS[pack] if (f"{NAMES[pack][arm]}-s{seed}", stem) in files(BOARDS / pack)}
            for arm in SEARCHED[pack]]  # fmt: skip
    monkeypatch.setitem(SEEDS, pack, sorted(set.intersection(*made)))
    monkeypatch.setitem(NAMES, pack, {arm: NAMES[pack][arm] for arm in SEARCHED[pack]})
    table.cache_clear()
    left = []
    for arm in SEARCHED[pack]:
        kept = [table(pack, arm, f"2 pixels{how}").mean() for how in (", search not flat", both)]
        rows = [row for seed in SEEDS[pack] for row in outcomes(pack, arm, seed, stem)]
        spent = [int(row["forwards"]) + int(row["backwards"]) for row in rows if row["broken_by"] == "pixel_pairs"]
        broken = [np.sum(np.array(spent) <= passes) / len(rows) for passes in PASSES]
        cells = [f"{100 * share:.1f}" for share in (*kept, *broken)]
        assert f"| {arm} | {' | '.join(cells)} |" in notes
        assert broken[-1] - broken[-2] < 0.01, "the search is flat at its end"
        left.append(cells[1])
    difference, error, freedom, _ = compared(pack, *reversed(SEARCHED[pack][:2]), f"2 pixels{both}")
    low, high = (100 * (difference + sign * stats.t.ppf(0.975, freedom) * error) for sign in (-1, 1))
    said = f"{100 * difference:+.1f} [{low:+.1f}, {high:+.1f}]".replace("-", "\u2212")
    assert said in notes
    assert said in findings
    assert not planned or said in (BOARDS.parent / "README.md").read_text()
    for text in () if planned else (findings, *(path.read_text() for path in TELL[pack])):
        assert f"{' and '.join(left)} %" in " ".join(text.split())
    table.cache_clear()
