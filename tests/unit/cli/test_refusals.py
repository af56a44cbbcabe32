"""What would be lost, replaced or silently left out is refused; what a command says it keeps, it keeps."""

import os

import pytest

from robustbench_kpca import evaluate, load_data, load_model, load_record
from robustbench_kpca._core.errors import BadInputError, BenchmarkError
from robustbench_kpca._core.files import write_atomic
from robustbench_kpca._core.strict import parse_assignments
from robustbench_kpca.cli.main import main
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.records.record import find_records
from robustbench_kpca.study.diagnostics.trajectory import over_training

pytestmark = pytest.mark.usefixtures("few_resamples")
QUIET = ["--audit", "none", "-q"]


@pytest.fixture
def runs(tmp_path):
    data, out = load_data("digits", limit=8), tmp_path / "runs"
    evaluate(load_model("vit_digits"), data, protocol="clean", name="vit_digits", out=out, audit=False)
    return out


def test_a_page_of_somebody_else_is_not_replaced(runs, capsys):
    (runs / "README.md").write_text("# my project")
    assert main(["board", "report", str(runs)]) == 2
    assert "is no page of a board" in capsys.readouterr().err
    assert (runs / "README.md").read_text() == "# my project"
    (runs / "README.md").unlink()
    assert [main(["board", "report", str(runs), "-q"]) for _ in range(2)] == [0, 0], "its own pages are"
    assert f"rbk board report {runs}" in (runs / "README.md").read_text(), "the command remakes the page"


def test_trainings_labels_and_images_that_make_no_sense_are_refused(capsys, tmp_path):
    assert main(["train", "vit_digits", "--fresh", "--resume"]) == 2
    assert "--fresh and --resume" in capsys.readouterr().err
    model, data = load_model("symvit_digits"), load_data("digits", limit=4)
    with pytest.raises(BadInputError, match="which has its own"):
        evaluate(model, data, protocol="fgsm-linf-8_255", labels="predicted", policy="last", audit=False)
    asked = ["eval", "-m", "vit_digits", "-p", "clean", "--limit", "4", "--keep-adversarial", "4", "-o", str(tmp_path)]
    assert main(asked) == 2
    assert "no protocol is an attack" in capsys.readouterr().err
    for how in ({"keep_adversarial": 2}, {"keep_adversarial": -1, "out": tmp_path}):
        with pytest.raises(BadInputError, match=r"samples to keep|keep_adversarial = -1"):
            RunOptions(**how)


@pytest.mark.parametrize("budgets", ["64/255,80/255", "8/255,40/255"])
def test_a_curve_keeps_the_images_of_every_budget(tmp_path, budgets):
    asked = ["eval", "-m", "symvit_digits", "-p", "fgsm-linf-8_255", "--curve", budgets, "--limit", "4", *QUIET]
    assert main([*asked, "--keep-adversarial", "4", "-o", str(tmp_path)]) == 0
    records = [load_record(path) for path in find_records(tmp_path)]
    assert [record.images_file is not None for record in records] == [True, True]
    assert main(["records", "verify", str(tmp_path), "-q", "--kept-images"]) == 0


def test_what_is_no_file_is_not_written(tmp_path):
    with pytest.raises(BadInputError, match="is a folder"):
        write_atomic(tmp_path, b"")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(BadInputError, match="no ordinary file"):
        write_atomic(tmp_path / "fifo", b"")
    before = os.umask(0o077)
    try:
        write_atomic(tmp_path / "mine", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o600, "as the user's files are"


def test_numbers_of_thousands_of_digits_are_one_line(runs, capsys):
    with pytest.raises(BadInputError, match="too many digits"):
        parse_assignments([f"steps={'9' * 5000}"])
    (runs / "own.toml").write_text(f"eps = {'9' * 5000}\n")
    assert main(["eval", "-m", "vit_digits", "-p", str(runs / "own.toml")]) == 2
    assert "own.toml is not valid TOML" in capsys.readouterr().err
    (record,) = find_records(runs)
    assert main(["records", "verify", str(record), "--samples", "2", "--seed", "-1"]) == 2


def test_curves_are_audited_once_and_images_shown_to_the_same_model(tmp_path):
    model, data = load_model("vit_digits"), load_data("digits", limit=4)
    first, second = evaluate(model, data, protocol=["fgsm-linf-8_255"], curve=["1/255", "2/255"], audit="quick")
    assert first.audit is not None
    assert first.audit == second.audit, "down to the seconds that it took"
    asked = ["eval", "-m", "rpc_symvit_digits", "--set", "model.lam=2", "-p", "fgsm-linf-8_255", "--limit", "4", *QUIET]
    assert main([*asked, "--keep-adversarial", "2", "-o", str(tmp_path)]) == 0
    assert main(["records", "verify", str(tmp_path), "-q", "--kept-images"]) == 0


def test_damaged_weights_are_one_line(tmp_path, capsys):
    for name, content in (("a", b"garbage that is no file"), ("b", b"\x02\0\0\0\0\0\0\0{}")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "x.epoch-001.safetensors").write_bytes(content)
        with pytest.raises(BenchmarkError, match=r"x\.epoch-001\.safetensors"):
            over_training(folder, "digits", ["test"], 2)
    (tmp_path / "vit_digits.safetensors").write_bytes(b"garbage that is no file")
    assert main(["train", "vit_digits", "--resume", "-o", str(tmp_path)]) == 2
    assert "is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["model.drop_path_rate=a", "model.layers=true"])
def test_options_of_models_have_their_kind(setting, capsys):
    assert main(["eval", "-m", "rpc_symvit_digits", "-p", "clean", "--set=model.untrained=true", "--set", setting]) == 2
    assert "expected" in capsys.readouterr().err


def test_an_index_that_is_ones_own_is_kept(tmp_path, capsys):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "pack.toml").write_text('title = "t"\n')
    page = tmp_path / "index.html"
    for _ in range(2):
        assert main(["board", "index", str(tmp_path)]) == 0
    page.write_text("mine")
    assert main(["board", "index", str(tmp_path)]) == 2
    assert "not written by rbk board index" in capsys.readouterr().err
    assert page.read_text() == "mine"
