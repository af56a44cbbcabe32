"""The weights that are committed beside a board are those of its records, so its numbers can be made again."""

import json
from pathlib import Path

import pytest

from robustbench_kpca import load_model
from robustbench_kpca.models.bundle import read_header
from robustbench_kpca.models.checkpoint import parameters_sha256

HOME = Path(__file__).parents[2] / "leaderboards"
WEIGHTS = sorted(HOME.glob("*/trainings/*/*.safetensors"))


@pytest.mark.parametrize("path", WEIGHTS, ids=lambda path: path.stem)
def test_committed_weights_are_those_of_the_records(path):
    options = json.loads(read_header(path)["config"])
    model = load_model(options.pop("name"), path, **options)
    records = [json.loads(one.read_text()) for one in (path.parents[2] / "records").glob(f"{path.stem}__*.record.json")]
    assert records
    assert {one["spec"]["model"]["parameters_sha256"] for one in records} == {parameters_sha256(model)}
