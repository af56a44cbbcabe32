"""Operations from the shape of a network, beside what torch counted for the committed table of costs."""

import json
from pathlib import Path

import pytest

from robustbench_kpca.models.operations import operations_of, parameters_of

COSTS = Path(__file__).parents[3] / "leaderboards" / "teo2024" / "table-13" / "efficiency.json"
ROWS = {row["title"]: row for row in json.loads(COSTS.read_text())["rows"]}


@pytest.mark.parametrize("title", ROWS)
def test_operations_are_those_that_torch_counts(title):
    name, *options = [part for part in ROWS[title]["model"].split("+") if part != "untrained"]
    settings = {key: int(value) for key, _, value in (option.partition("=") for option in options) if value.isdecimal()}
    share = operations_of(name, settings) / (ROWS[title]["test"]["operations"] / 8)
    exact = "FAN" not in title and "scaled" not in title and "layer 1, ViT" not in title
    assert share == 1 if exact else 0.8 < share < 1.01
    assert parameters_of(name, settings) == pytest.approx(ROWS[title]["parameters"], rel=0.4 if "(S)" in title else 0.3)


def test_only_architectures_of_pictures_have_operations():
    assert operations_of("rpc_lm_paper", {}) is None
    assert operations_of("symvit_segmenter_tiny", {}) > 10 * operations_of("symvit_tiny_patch16_224", {}) > 0
