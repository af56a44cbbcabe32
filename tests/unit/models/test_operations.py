"""Operations from the shape of a network, beside what torch counted for the committed table of costs."""

import json
from pathlib import Path

import pytest

from robustbench_kpca.models.operations import operations_of, size_of

COSTS = Path(__file__).parents[3] / "leaderboards" / "teo2024" / "table-13" / "efficiency.json"
ROWS = {row["title"]: row for row in json.loads(COSTS.read_text())["rows"]}


@pytest.mark.parametrize("title", ROWS)
def test_operations_are_those_that_torch_counts(title):
    name, *options = [part for part in ROWS[title]["model"].split("+") if part != "untrained"]
    settings = {key: int(value) for key, _, value in (option.partition("=") for option in options) if value.isdecimal()}
    share = operations_of(name, settings) / (ROWS[title]["test"]["operations"] / 8)
    exact = "FAN" not in title and "scaled" not in title and "layer 1, ViT" not in title
    assert share == 1 if exact else 0.8 < share < 1.01
    assert size_of(name, settings) == pytest.approx(ROWS[title]["parameters"], rel=0.4 if "(S)" in title else 0.3)


def test_other_backbones_and_language_models():
    assert operations_of("rpc_seq_listops", {}) is None
    assert operations_of("symvit_segmenter_tiny", {}) > 10 * operations_of("symvit_tiny_patch16_224", {}) > 0
    assert size_of("rpc_lm_paper", {}) == pytest.approx(43.8e6, rel=0.02), "the decoder has 43.76 million"
    blocks = 16 * (2 * 256 * 128 * (3 * 128 + 2 * 2048) + 4 * 256**2 * 128)
    assert operations_of("symmetric_lm_paper", {}) == blocks + 2 * 256 * 128 * 20_000
    assert operations_of("rpc_lm_paper", {}) == operations_of("symmetric_lm_paper", {}) + 12 * 4 * 256**2 * 128
