"""The project defends its own board: the demo's records, made here and now, against the committed ones."""

from pathlib import Path

import pytest

from robustbench_kpca.cli.main import main
from robustbench_kpca.records.record import find_records, load_record

BASELINE = Path(__file__).parents[2] / "leaderboards" / "digits" / "records"


@pytest.mark.slow
@pytest.mark.timeout(1200)  # minutes, where types are checked on a busy machine
def test_the_demo_meets_the_committed_board(tmp_path, capsys, types_unchecked):
    assert main(["board", "demo", "--out", str(tmp_path), "--quiet"]) == 0
    out = capsys.readouterr().out
    for page in ("README.md", "index.html"):
        assert (tmp_path / page).is_file()
        assert str(tmp_path / page) in out
    rules = ["clean_accuracy:-1pp", "robust_accuracy:-2pp", "corruption_accuracy:-1pp"]
    arguments = [word for rule in rules for word in ("--fail", rule)]
    assert main(["check", str(tmp_path / "records"), "--baseline", str(BASELINE), *arguments]) == 0


def test_the_committed_board_holds_what_the_models_promise():
    found = {}
    for path in find_records(BASELINE):
        record = load_record(path)
        found[record.spec.model.name, record.spec.protocol.name] = record.metrics
    models = {model for model, _ in found}
    assert len(models) == 14
    for model in models:
        assert found[model, "clean"]["clean_accuracy"].n >= 360
        assert found[model, "clean"]["clean_accuracy"].value >= 0.95
        attacked = found[model, "pgd20-linf-8_255"]["robust_accuracy"].value
        assert attacked >= 0.60 if model.endswith("_adv") else attacked <= 0.20
