"""leaderboards/coverage.md: commands plan, names and files exist, counts are right, and no item is left out."""

import pytest
from coverage_page import ROOT, faults_of, rows, wrong_counts

from robustbench_kpca.protocols import presets
from robustbench_kpca.study.reproduction.pack import load_pack

COVERAGE = (ROOT / "leaderboards" / "coverage.md").read_text("utf-8")


@pytest.mark.parametrize("paper", [*dict.fromkeys(row.paper for row in rows(COVERAGE))])
def test_every_row_is_right(paper):
    assert [fault for row in rows(COVERAGE) if row.paper == paper for fault in faults_of(row)] == []


def test_the_head_counts_the_rows():
    assert wrong_counts(COVERAGE) == []


OF_NO_PAPER = ("answer", "answer-active", "answer-cifar10", "cifar10", "league-digits", "league-rivals")


@pytest.mark.parametrize("pack", [name for name in presets.find("packs") if name not in OF_NO_PAPER])
def test_every_item_has_a_row(pack):
    made = {item for row in rows(COVERAGE) for name, item in row.items if name == pack}
    assert made == {*load_pack(pack)[2]}
