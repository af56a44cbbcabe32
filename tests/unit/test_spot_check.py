"""A board's records are evaluated again at random, a page says so, and records are made ready to be handed in."""

import subprocess

import pytest

from robustbench_kpca.cli.main import main
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.submission import write_submission
from robustbench_kpca.metrics import measure
from robustbench_kpca.protocols.scenario import parse_scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import OutcomesFile, find_records, load_record
from robustbench_kpca.records.spot_check import Entry, SpotCheck, lines, load_spot_check

pytestmark = pytest.mark.usefixtures("few_resamples")
BOARD = (
    'title = "t"\nintro = "i"\ndata = "digits"\nsplit = "test"\nlimit = 8\nseed = 0\nmodels = ["vit_digits"]\n'
    'rank_by = "C"\n[[column]]\ntitle = "C"\nprotocol = "clean"\nmetric = "clean_accuracy"\n'
)
ENTRY = {
    "model": "m", "protocol": "p", "outcomes": "0" * 64, "checked": "2026-11-22", "total": 360, "samples": 24,
    "rows": 24, "differing": 0, "exact": True, "why": "",
}  # fmt: skip


@pytest.fixture
def board(tmp_path, monkeypatch):
    """A board of one record of 8 samples, in the folder `mine`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "board.toml").write_text(BOARD)
    words = ["eval", "-m", "vit_digits", "-p", "clean", "--limit", "8", "--batch-size", "8", "--audit", "none", "-q"]
    assert main([*words, "-o", "mine/records"]) == 0
    return tmp_path / "mine"


def forge(folder):
    """Change the prediction of every sample of the record, and all that follows from it but the weights."""
    (path,) = find_records(folder)
    record = load_record(path)
    rows = [row | {"prediction": (row["label"] + 1) % 10, "rank": 1} for row in record.outcomes.rows()]
    outcomes = Outcomes.from_rows(record.outcomes.table, rows)
    for file in path.parent.iterdir():
        file.unlink()
    metrics = measure(outcomes, parse_scenario(record.spec.protocol.resolved, "forged"))
    changed = record.model_copy(update={"outcomes_file": OutcomesFile.of(outcomes, record.spec), "metrics": metrics})
    return changed.attach(outcomes).save(path.parent)


def test_a_spot_check_is_kept_shown_and_gone_on_with(board, capsys):
    assert main(["board", "spot-check", "mine", "--samples", "4", "--seed", "1"]) == 0
    out = capsys.readouterr()
    assert "vit_digits  clean  0 of 4 rows differ" in out.err
    kept = load_spot_check(board / "spot-check.json")
    (entry,) = kept.records.values()
    assert (kept.samples, kept.seed, entry.samples, entry.total, entry.exact) == (4, 1, 4, 8, True)
    before = (board / "spot-check.json").read_bytes()
    assert main(["board", "spot-check", "mine", "--samples", "4"]) == 0  # nothing is left to do
    assert (board / "spot-check.json").read_bytes() == before
    assert "rows differ" not in capsys.readouterr().err
    for _ in range(2):
        assert main(["board", "render", "mine"]) == 0
        pages = [(board / name).read_bytes() for name in ("README.md", "index.html")]
        assert all(
            b"Spot check: on " in page and b"of 4 rows, all are equal to the last digit" in page for page in pages
        )
    assert pages == [(board / name).read_bytes() for name in ("README.md", "index.html")]


def test_what_was_checked_is_not_replaced_unasked(board, capsys):
    assert main(["board", "spot-check", "mine", "--samples", "4", "--seed", "1", "-q"]) == 0
    before = (board / "spot-check.json").read_bytes()
    assert main(["board", "spot-check", "mine", "--samples", "3"]) == 2
    assert "add --fresh" in capsys.readouterr().err
    assert (board / "spot-check.json").read_bytes() == before


def test_a_forged_record_is_found(board, capsys):
    forge(board / "records")
    assert main(["board", "spot-check", "mine", "--samples", "2"]) == 1
    assert "Rows differ in: vit_digits under clean (2 of 2 rows)." in capsys.readouterr().out


def test_records_are_made_ready_to_be_handed_in(board, capsys):
    assert main(["records", "submit", "mine/records", "--to", "ready", "--samples", "3", "-q"]) == 0
    ready = board.parent / "ready"
    page = (ready / "SUBMISSION.md").read_text()
    assert "| vit\\_digits | digits (test) | clean | 8 | 3 samples, 0 rows differ |" in page
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=ready, capture_output=True, check=False)
    assert done.returncode == 0
    assert (
        load_record(find_records(ready)[0]).outcomes.digest() == load_record(find_records(board)[0]).outcomes.digest()
    )
    assert main(["records", "submit", "mine/records", "--to", "ready", "--samples", "3", "-q"]) == 2
    assert "is there already" in capsys.readouterr().err
    (path,) = find_records(board)
    path.write_text(path.read_text().replace('"n": 8', '"n": 9'))
    assert main(["records", "submit", "mine/records", "--to", "other", "-q"]) == 2
    assert not (board.parent / "other").exists()


def test_nothing_is_written_where_rows_differ(board):
    path = forge(board / "records")
    record = load_record(path)
    entry = Entry(**ENTRY | {"outcomes": record.outcomes_file.sha256, "differing": 3})
    check = SpotCheck(samples=24, seed=0, records={record.spec.stem(): entry})
    with pytest.raises(BadInputError, match="3 of 24 rows"):
        write_submission([record], check, board / "ready")
    assert not (board / "ready").exists()
    assert not list(board.glob(".rbk-submission-*"))


def test_the_power_of_a_spot_check_is_hypergeometric():
    """By hand: of 4 samples one is forged; 2 of them hold it with probability 1/2."""
    assert Entry(**ENTRY | {"total": 4, "samples": 2, "rows": 2}).power(0.25) == pytest.approx(0.5)
    assert Entry(**ENTRY).power(0.1) == pytest.approx(1 - 0.9**24, abs=0.01)


@pytest.mark.parametrize("change", [{"samples": 400}, {"differing": 25}, {"rows": 0}, {"total": 0}])
def test_counts_that_do_not_fit_are_refused(change, tmp_path):
    text = SpotCheck(samples=24, seed=0, records={"a": Entry(**ENTRY)}).model_dump_json()
    for name, value in change.items():
        text = text.replace(f'"{name}":{ENTRY[name]}', f'"{name}":{value}')
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BadInputError):
        load_spot_check(tmp_path / "x.json")


def test_an_entry_of_another_table_does_not_count(board):
    record = load_record(find_records(board)[0])
    check = SpotCheck(samples=24, seed=0, records={record.spec.stem(): Entry(**ENTRY)})
    assert check.entry(record) is None
    assert lines(check, [record]) == ["Spot check: no record was remade.", "1 of 1 records have not been checked."]
    assert lines(None, [record]) == []
