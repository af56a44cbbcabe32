"""The project defends its own board: the demo's records, made here and now, against the committed ones."""

from pathlib import Path

import pytest

from robustbench_kpca.cli.main import main

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
