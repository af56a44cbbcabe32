"""The weights that are committed beside a board are those of its records, so its numbers can be made again."""

import json
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from robustbench_kpca import load_model
from robustbench_kpca.models.bundle import read_header
from robustbench_kpca.models.checkpoint import parameters_sha256

HOME = Path(__file__).parents[3] / "leaderboards"
WEIGHTS = sorted(HOME.glob("*/trainings/*/*.safetensors"))


@cache
def parameters(board):
    """Name of a model -> the digests of its weights, as the records beside a board have them."""
    digests = defaultdict(set)
    for path in (board / "records").glob("*.record.json"):  # long names are shortened in names of files
        model = json.loads(path.read_text())["spec"]["model"]
        digests[model["name"]].add(model["parameters_sha256"])
    return digests


def require_those_of_the_records(path):
    options = json.loads(read_header(path)["config"])
    model = load_model(options.pop("name"), path, **options)
    assert parameters(path.parents[2])[path.stem] == {parameters_sha256(model)}


@pytest.mark.parametrize("board", sorted({path.parents[2] for path in WEIGHTS}), ids=lambda board: board.name)
def test_a_committed_file_of_weights_is_that_of_the_records(board):
    require_those_of_the_records(min(path for path in WEIGHTS if path.parents[2] == board))


@pytest.mark.slow
@pytest.mark.parametrize("path", WEIGHTS, ids=lambda path: path.stem)
def test_committed_weights_are_those_of_the_records(path):
    require_those_of_the_records(path)
