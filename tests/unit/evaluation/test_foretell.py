"""`rbk eval --plan` says what an evaluation takes at most, and the page of prices is what is computed."""

import json
import sys
from pathlib import Path

import pytest

from robustbench_kpca import load_data
from robustbench_kpca._engine.attack_loop.passes import Passes
from robustbench_kpca._engine.inference.work import DEVICES, Work
from robustbench_kpca.cli.main import main
from robustbench_kpca.evaluation.execute import estimates
from robustbench_kpca.records.record import find_records, load_record

ROOT = Path(__file__).parents[3]


def test_seconds_follow_from_passes_and_the_page_has_the_prices(monkeypatch):
    core = DEVICES["CPU core"].operations
    large = Work(operators=100, operations=int(core), bytes=1)
    assert estimates(large, Passes(3, 2), 10)["CPU core"] == pytest.approx(10 * (3 + 2 * 2))
    assert estimates(large, Passes(3, 2), 10)["H100"] < estimates(large, Passes(3, 2), 10)["A100"]
    small = Work(operators=100, operations=1, bytes=1)
    assert estimates(small, Passes(1, 0), 64)["H100"] == pytest.approx(100 * 1e-5, rel=0.01), "one batch of launches"
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import gpu

    assert gpu.priced() in (ROOT / "docs" / "run_at_scale.md").read_text(), "run benchmarks/gpu.py prices --write"


def test_a_plan_says_what_is_then_needed_at_most(tmp_path, capsys, few_resamples):
    words = ["eval", "-m", "vit_digits_adv", "-p", "clean,pgd20-linf-8_255", "--limit", "8", "-o", str(tmp_path), "-q"]
    assert not main([*words, "--plan", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert not list(tmp_path.iterdir()), "nothing is evaluated"
    assert [(row["protocol"], row["samples"], row["batch_size"]) for row in rows] == [
        ("clean", 8, 64),
        ("pgd20-linf-8_255", 8, 64),
    ]
    assert not main([*words, "--audit", "none"])
    made = {record.spec.protocol.name: record.passes for record in map(load_record, find_records(tmp_path))}
    for row in rows:
        assert made[row["protocol"]].forwards <= 8 * row["forwards"]
        assert made[row["protocol"]].backwards <= 8 * row["backwards"]
        assert set(row["seconds"]) == set(DEVICES)
    assert made["pgd20-linf-8_255"].backwards > 8 * rows[1]["backwards"] / 2, "most of them withstand"


def test_what_is_not_known_is_not_estimated(capsys):
    assert not main(["eval", "-m", "rpc_symvit_shapes", "-p", "clean", "--limit", "2", "--plan"])
    shown = capsys.readouterr()
    assert "?" in shown.out
    assert "Estimates" in shown.err
    assert len(load_data("shapes", limit=2)) == 2
