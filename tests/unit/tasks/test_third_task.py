"""A task that the package does not know is evaluated, attacked, audited, recorded, checked and ranked."""

import numpy as np
import pytest
import toy_task
from board_pages import board_text

from robustbench_kpca import evaluate, load_data, load_record
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.records.record import find_records

EPS = 8 / 255
BOARD = board_text(
    ["toy_task-shifted", "toy_task-exact"],
    {"Clean": ("clean", "tag_accuracy"), "Attacked": ("pgd20-linf-8_255", "robust_sequences")},
    data="toy-tags", rank_by="Attacked",
)  # fmt: skip


@pytest.fixture(autouse=True)
def tagging(monkeypatch, tmp_path, metrics_of_a_test):
    toy_task.register(monkeypatch.setitem)
    monkeypatch.chdir(tmp_path)


def closest(shift):
    """Distance of every sequence's closest place to the threshold: at that eps it breaks; negative if wrong already."""
    data = toy_task.Sequences()
    signed = np.where(data.values > 0.5, 1, -1) * (data.values - 0.5 - shift)
    return signed.min(1), (signed > 0).mean(1)


@pytest.mark.parametrize(("model", "shift"), [(toy_task.exact, 0.0), (toy_task.shifted, 0.03)])
def test_clean_and_attacked_numbers_are_those_of_the_closed_form(model, shift, tmp_path):
    gaps, right = closest(shift)
    clean = evaluate(model(), "toy-tags", protocol="clean", out=tmp_path)
    assert clean.spec.data.task == "tagging"
    assert sorted(clean.spec.code) == ["model", "task tagging"]
    assert clean.metrics["tag_accuracy"].value == pytest.approx(right.mean())
    attacked = evaluate(model(), "toy-tags", protocol="pgd20-linf-8_255", out=tmp_path, audit=False, batch_size=7)
    broken = attacked.outcomes["broken_by"] != ""
    assert broken.tolist() == (gaps < EPS).tolist()
    assert attacked.outcomes["broken_by"][gaps < 0].tolist() == ["clean"] * int((gaps < 0).sum())
    assert 0 < broken.sum() < len(broken)
    assert {load_record(path).outcomes.digest() for path in find_records(tmp_path)} == {
        clean.outcomes.digest(), attacked.outcomes.digest()
    }  # fmt: skip


def test_its_models_are_audited_and_what_it_has_no_table_for_is_refused(tmp_path):
    record = evaluate(toy_task.exact(), load_data("toy-tags", limit=8), protocol="pgd20-linf-8_255")
    assert record.audit is not None
    assert record.audit.subject.data == "toy-tags"
    flags = {check.name: check.saw for check in record.audit.flags}
    assert "black-box" not in flags
    assert "huge-eps" not in flags
    with pytest.raises(BadInputError, match=r"corruption.*tagging.*clean, attack"):
        evaluate(toy_task.exact(), "toy-tags", protocol="common-corruptions-32px", out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command_line_evaluates_shows_checks_and_ranks_it(tmp_path, capsys):
    words = "eval -m toy_task:exact -m toy_task:shifted --data toy-tags -o runs --audit none -q"
    assert main([*words.split(), "-p", "clean", "-p", "pgd20-linf-8_255"]) == 0
    assert main(["records", "show", "runs"]) == 0
    assert main(["check", "runs", "--baseline", "runs", "--fail", "robust_sequences:-2pp"]) == 0
    (tmp_path / "board").mkdir()
    (tmp_path / "board" / "board.toml").write_text(BOARD)
    capsys.readouterr()
    assert main(["board", "render", "board", "--records", "runs", "-q"]) == 0
    page = (tmp_path / "board" / "README.md").read_text()
    assert page.index("toy_task-exact") < page.index("toy_task-shifted")
    assert "100.0" in page
    assert (tmp_path / "board" / "index.html").stat().st_size > 1000
