"""A board's records are evaluated again at random, and a page says so."""

import shutil

import pytest
from board_pages import board_text
from forging import saved
from torch import nn

from robustbench_kpca import load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.records.record import find_records, load_record
from robustbench_kpca.records.spot_check import Entry, SpotCheck, lines, load_spot_check

pytestmark = pytest.mark.usefixtures("few_resamples")
BOARD = board_text(["vit_digits"], {"C": ("clean", "clean_accuracy")}, limit=8)
ENTRY = {
    "model": "m", "protocol": "p", "outcomes": "0" * 64, "checked": "2026-11-22", "total": 360, "samples": 24,
    "rows": 24, "differing": 0, "exact": True, "why": "",
}  # fmt: skip


@pytest.fixture
def board(tmp_path, monkeypatch):
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
    for file in path.parent.iterdir():
        file.unlink()
    return saved(
        record, path.parent, columns=lambda o: {"prediction": (o["label"] + 1) % 10, "rank": 0 * o["label"] + 1}
    )


def test_a_spot_check_is_kept_shown_and_gone_on_with(board, capsys):
    assert main(["records", "verify", "--board", "mine", "--samples", "4", "--seed", "1"]) == 0
    out = capsys.readouterr()
    assert "vit_digits  clean  0 of 4 rows differ" in out.err
    kept = load_spot_check(board / "spot-check.json")
    (entry,) = kept.records.values()
    assert (kept.samples, kept.seed, entry.samples, entry.total, entry.exact) == (4, 1, 4, 8, True)
    before = (board / "spot-check.json").read_bytes()
    assert main(["records", "verify", "--board", "mine", "--samples", "4"]) == 3, "nothing is left to do"
    assert (board / "spot-check.json").read_bytes() == before
    assert "1 of 1 records were not made again now" in capsys.readouterr().out
    assert main(["board", "render", "mine"]) == 0
    for name in ("README.md", "index.html"):
        assert "of 4 rows, all are equal to the last digit" in (board / name).read_text()
    assert main(["records", "verify", "--board", "mine", "--samples", "3"]) == 2
    assert "add --fresh" in capsys.readouterr().err
    assert (board / "spot-check.json").read_bytes() == before


def test_a_forged_record_is_found_as_often_as_the_power_says(board, capsys):
    forge(board / "records")
    assert main(["records", "verify", "--board", "mine", "--samples", "2"]) == 1
    assert "Rows differ in: vit_digits under clean (2 of 2 rows)." in capsys.readouterr().out
    # By hand: of 4 samples one is forged; 2 of them hold it with probability 1/2.
    assert Entry(**ENTRY | {"total": 4, "samples": 2, "rows": 2}).power(0.25) == pytest.approx(0.5)
    assert Entry(**ENTRY).power(0.1) == pytest.approx(1 - 0.9**24, abs=0.01)


class Hiding(nn.Module):
    """Has the weights of one network, and answers as another."""

    def __init__(self):
        super().__init__()
        self.shown, self.hidden = load_model("vit_digits"), [load_model("symvit_digits")]

    def state_dict(self, *args, **kwargs):
        return self.shown.state_dict(*args, **kwargs)

    def forward(self, x):
        return self.hidden[0](x)


@pytest.fixture
def other(board, monkeypatch):
    """The board with a record of another network under a bundled name; its command names the code that made it."""
    code = "from test_spot_check import Hiding\nfrom robustbench_kpca import load_model\n\n\n"
    code += 'def other():\n    return load_model("symvit_digits")\n\n\ndef hiding():\n    return Hiding().eval()\n'
    (board.parent / "theirs.py").write_text(code)

    def make(factory, stated):
        own = load_record(find_records(board)[0]).spec.model
        shutil.rmtree(board / "records")
        words = "--name vit_digits --data digits -p clean --limit 8 --batch-size 8 --audit none -q -o mine/records"
        assert main(["eval", "-m", f"theirs.py:{factory}", *words.split()]) == 0
        path = find_records(board)[0]
        record = load_record(path)
        model = record.spec.model.model_copy(update={name: getattr(own, name) for name in stated})
        spec = record.spec.model_copy(update={"model": model} | ({"code": {}} if stated else {}))
        path.write_text(record.model_copy(update={"spec": spec}).model_dump_json())
        return path

    return make


@pytest.mark.parametrize(
    ("factory", "stated", "words", "code", "text"),
    [
        ("other", ("parameters_sha256", "config"), (), 3, "answers otherwise on the first batch"),
        ("other", ("parameters_sha256", "config", "probe_sha256"), (), 1, "Rows differ in: vit_digits under clean"),
        ("hiding", (), (), 3, "the record was made with other code of model"),
        ("hiding", ("config",), (), 3, "answers otherwise on the first batch"),
        ("hiding", ("config",), ("--other-versions",), 1, "Rows differ in: vit_digits under clean"),
    ],
)
def test_another_network_under_a_bundled_name_is_found(other, capsys, factory, stated, words, code, text):
    """Whatever the command in the record names, the bundled network is made again."""
    path = other(factory, stated)
    (path.parents[2] / "theirs.py").unlink()
    assert main(["records", "verify", "--board", "mine", "--run-code", *words]) == code
    assert text in capsys.readouterr().out
    assert main(["records", "verify", str(path), "--run-code"]) == 2
    assert "for 'vit_digits'; expected the bundled weights of that name" in capsys.readouterr().err


def test_code_of_a_board_runs_only_where_it_may(board, capsys):
    """Its row is not made again; the next call tries it again."""
    (board.parent / "own.py").write_text(
        "from pathlib import Path\nfrom robustbench_kpca import load_model\n\n"
        'Path("it-ran").touch()\n\n\ndef make():\n    return load_model("vit_digits")\n'
    )
    toml = board / "board.toml"
    toml.write_text(BOARD.replace('"vit_digits"', '"m"') + '[[model]]\nname = "m"\nsource = "own.py:make"\n')
    shutil.rmtree(board / "records")
    words = "eval -m own.py:make --name m --data digits -p clean --limit 8 --audit none -q -o mine/records"
    assert main(words.split()) == 0
    (board.parent / "it-ran").unlink()
    (path,) = find_records(board)
    assert main(["records", "verify", "--board", "mine", "--samples", "3"]) == 3
    assert "1 could not be remade: the board names code: the file own.py would be run" in capsys.readouterr().out
    assert main(["records", "verify", str(path)]) == 2
    assert "the record names code: the file own.py would be run" in capsys.readouterr().err
    assert not (board.parent / "it-ran").exists()
    assert main(["records", "verify", "--board", "mine", "--samples", "3", "--run-code"]) == 0
    assert (board.parent / "it-ran").exists()


@pytest.mark.parametrize("change", ['source = "symvit_digits"', 'checkpoint = "w.safetensors"'])
def test_a_board_gives_a_bundled_name_no_other_network(board, capsys, change):
    (board / "board.toml").write_text(f'{BOARD}[[model]]\nname = "vit_digits"\n{change}\n')
    for words in (["board", "render", "mine"], ["board", "plan", "mine"], ["records", "verify", "--board", "mine"]):
        assert main(words) == 2
        assert "[[model]] vit_digits has another source or checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"samples": 400}, {"differing": 25}, {"rows": 0}, {"total": 0}])
def test_counts_that_do_not_fit_are_refused(change, tmp_path):
    text = SpotCheck(samples=24, seed=0, records={"a": Entry(**ENTRY)}).model_dump_json()
    for name, value in change.items():
        text = text.replace(f'"{name}":{ENTRY[name]}', f'"{name}":{value}')
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BadInputError):
        load_spot_check(tmp_path / "x.json")


def test_boards_without_records_or_with_other_tables_are_not_checked(board):
    record = load_record(find_records(board)[0])
    check = SpotCheck(samples=24, seed=0, records={record.spec.stem(): Entry(**ENTRY)})
    assert check.entry(record) is None
    assert lines(check, [record]) == ["Spot check: no record was remade.", "1 of 1 records have not been checked."]
    assert lines(None, [record]) == []
    shutil.rmtree(board / "records")
    assert main(["records", "verify", "--board", "mine"]) == 3
