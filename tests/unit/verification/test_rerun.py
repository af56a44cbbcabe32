"""A record names the command that makes it, and can be made again and compared, whole or in part."""

import json
import shlex
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from robustbench_kpca import evaluate, load_data, load_model, load_record
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import app, main
from robustbench_kpca.evaluation.command import MOST, Command, parse
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest
from robustbench_kpca.models.checkpoint import save_checkpoint
from robustbench_kpca.records.differences import chance_of_finding, differences
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import find_records
from robustbench_kpca.tasks import task_named
from robustbench_kpca.verification import rerun as rerunning
from robustbench_kpca.verification.rerun import rerun

pytestmark = pytest.mark.usefixtures("few_resamples")
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("C",)), min_size=1).filter(lambda s: s == s.strip())
VALUES = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), WORDS, st.lists(WORDS | st.integers()))
PLAIN = WORDS.filter(lambda text: not text.startswith("-"))
COMMANDS = st.builds(
    Command,
    st.builds(
        ModelRequest, PLAIN, st.none() | PLAIN, st.booleans(), st.booleans(), st.none() | PLAIN,
        st.dictionaries(st.sampled_from(["lam", "iterations"]), VALUES),
    ),
    st.builds(
        DataRequest, PLAIN, st.none() | PLAIN, st.none() | st.integers(1), st.none() | PLAIN,
        size=st.none() | st.integers(1, 4096),
    ),
    PLAIN,
    st.dictionaries(st.sampled_from(["eps", "steps", "below"]), VALUES),
    st.builds(
        RunOptions, seed=st.integers(0, 2**63 - 1), batch_size=st.none() | st.integers(1, 65_536),
        device=st.none() | PLAIN,
        allow=st.lists(PLAIN).map(tuple), frost_folder=st.none() | PLAIN.map(Path),
        compile=st.none() | st.just("default"),
        tf32=st.booleans(),
    ),
    st.sampled_from(["full", "quick", "none", None]),
    st.none() | PLAIN,
)  # fmt: skip


@pytest.mark.untyped  # checks of types draw random numbers, which strategies may not
@given(COMMANDS)
def test_what_is_written_can_be_read(command):
    assert parse(command.words()) == command


MANY = ("rbk", "eval", *["--allow", "x"] * 100_000)
ODD = [
    (),
    ("evaluate(model)",),
    MANY,
    ("rbk", "eval", "--model", "m", "--data", "d", "--protocol", "p", "--out", "o"),
    ("rbk", "eval"),
    ("rbk", "eval", "--model", "m", "--data", "d", "--x", "1"),
]


def test_the_longest_command_is_read_and_a_model_may_be_named(runs, capsys):
    words = ["rbk", "eval", "--model", "m", "--data", "d", "--protocol", "p", "--seed", "0"]
    words += ["--allow", "x"] * ((MOST - len(words)) // 2)
    assert len(words) == MOST
    assert parse(words).model.model == "m"
    path = next(path for path in find_records(runs) if "clean" in path.name)
    assert main(["records", "verify", str(path), "--samples", "3", "-m", "vit_digits", "-q"]) == 0
    assert main(["records", "verify", str(path), "--samples", "3", "-m", "symvit_digits", "-q"]) == 2
    assert "are not those of the record" in capsys.readouterr().err


@pytest.mark.parametrize("words", ODD)
def test_what_is_no_command(words):
    with pytest.raises(BadInputError):
        parse(words)


LOADED = ["model.resize_positions=true", "model.untrained=true"]


def test_rbk_eval_understands_the_words():
    command = Command(
        ModelRequest("vit_digits", "w.safetensors::ema", True, True, "n", {"lam": 2}),
        DataRequest("digits", "test", 8, "svhn"), "pgd20-linf-2_255", {"eps": "1/255"},
        RunOptions(seed=3, batch_size=16, device="cpu", allow=("batch",)), "quick", None,
    )  # fmt: skip
    context = typer.main.get_command(app).commands["eval"].make_context("eval", list(command.words()[2:]))
    asked = SimpleNamespace(**context.params)
    assert (asked.model, asked.checkpoint) == (["vit_digits"], "w.safetensors::ema")
    assert (asked.data, asked.limit, asked.against) == ("digits", 8, "svhn")
    assert (asked.protocol, asked.set_) == (["pgd20-linf-2_255"], ["model.lam=2", *LOADED, "eps=1/255"])
    assert (asked.seed, asked.batch_size, asked.device, asked.allow) == (3, 16, "cpu", ["batch"])
    assert asked.audited == "quick"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Records of an attack at two budgets and of clean images, made by the command line."""
    folder = tmp_path_factory.mktemp("runs")
    common = ["eval", "-m", "vit_digits", "--limit", "20", "--batch-size", "8", "-o", str(folder), "-q"]
    attack = ["-p", "pgd20-linf-2_255", "--audit", "none", "--set", "steps=5", "--curve", "1/255,2/255"]
    assert main([*common, *attack]) == 0
    assert main([*common, "-p", "clean"]) == 0
    return folder


def test_every_record_is_remade_to_the_last_digit(runs, capsys):
    paths = find_records(runs)
    assert len(paths) == 3
    for path in paths:
        assert main(["records", "verify", str(path), "-q"]) == 0
        assert "20 of 20 samples made again: equal to the last digit" in capsys.readouterr().out
        record = load_record(path)
        for seed in range(3):  # other samples, another number of them in a batch
            done = rerun(record, samples=5, seed=seed)
            assert done.exact
            assert done.equal
            assert len(done.samples) == 5


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "nothing to verify; expected RECORD, or --board BOARD"),
        ("a --fresh", "--fresh with no --board has no effect"),
        ("a --kept-images --samples 3", "--samples with --kept-images has no effect"),
        ("a --kept-images --other-versions", "--other-versions with --kept-images has no effect"),
        ("--board digits --kept-images", "--kept-images with --board has no effect"),
        ("--board digits -m vit_digits", "--model with --board has no effect"),
        ("--board digits --checkpoint w.safetensors", "--checkpoint with --board has no effect"),
        ("a b --board digits", "2 places with --board"),
    ],
)
def test_what_has_no_effect_is_refused(words, text, capsys):
    assert main(["records", "verify", *words.split()]) == 2
    assert text in " ".join(capsys.readouterr().err.split())


def test_the_command_is_shown_and_remakes_the_record(runs, tmp_path, capsys):
    path = next(path for path in find_records(runs) if "below" in path.name)
    record = load_record(path)
    assert main(["records", "show", str(path)]) == 0
    assert "rbk eval --model vit_digits" in " ".join(capsys.readouterr().out.split())
    words = shlex.split(shlex.join(record.command))
    assert main([*words[1:], "-o", str(tmp_path), "-q"]) == 0
    again = load_record(find_records(tmp_path)[0])
    assert again.spec == record.spec
    assert again.outcomes.to_csv() == record.outcomes.to_csv()
    assert again.command == record.command


def test_weights_may_lie_elsewhere_than_where_the_command_has_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("vit_digits", "symvit_digits"):
        save_checkpoint(Path(f"{name}.safetensors"), load_model(name), {})
    command = "eval -m vit_digits --checkpoint vit_digits.safetensors --name m --limit 4 -p clean -o out -q"
    assert main(command.split()) == 0
    (path,) = find_records("out")
    Path("vit_digits.safetensors").rename("moved.safetensors")
    asked = ["records", "verify", str(path), "-q"]
    assert main(asked) == 2
    assert main([*asked, "--checkpoint", "moved.safetensors"]) == 0
    assert "4 of 4 samples made again: equal to the last digit" in capsys.readouterr().out
    assert main([*asked, "--checkpoint", "symvit_digits.safetensors"]) == 2


def forged(record, row, column, value):
    columns = {name: values.copy() for name, values in record.outcomes.columns.items()}
    columns[column][row] = value
    outcomes = Outcomes(record.outcomes.task, record.outcomes.kind, columns)
    return record.model_copy(
        update={"outcomes_file": record.outcomes_file.model_copy(update={"sha256": outcomes.digest()})}
    ).attach(outcomes)


def test_a_forged_row_is_found_where_it_is_looked_at(runs, tmp_path, capsys):
    record = load_record(next(path for path in find_records(runs) if "below" in path.name))
    row = int((record.outcomes["broken_by"] == "pgd").argmax())
    wrong = {0, 1, 2} - {record.outcomes["label"][row], record.outcomes["prediction"][row]}
    fake = forged(record, row, "prediction", min(wrong))  # another wrong class, which breaks no rule
    path = fake.save(tmp_path)
    assert main(["records", "verify", str(path), "-q"]) == 1
    out = capsys.readouterr().out
    assert f"differs: {fake.outcomes['sample'][row]}: prediction" in out
    assert "1 of 20 rows differ" in out
    assert main(["records", "verify", str(path), str(find_records(runs)[0]), "--json"]) == 1
    assert [shown["equal"] for shown in json.loads(capsys.readouterr().out)] == [False, True]
    assert main(["records", "verify", str(path), "--samples", "7", "--seed", "1", "--json"]) in (0, 1)
    [shown] = json.loads(capsys.readouterr().out)
    assert shown["equal"] == (fake.outcomes["sample"][row] not in shown["samples"])
    assert shown["power"] == pytest.approx(chance_of_finding(2, 20, 7))


@pytest.mark.parametrize(("forged", "total", "looked_at"), [(1, 6, 2), (2, 7, 3), (3, 5, 3), (0, 5, 2)])
def test_the_chance_of_finding_a_forged_sample(forged, total, looked_at):
    """All choices counted one by one."""
    choices = list(combinations(range(total), looked_at))
    hit = sum(any(one < forged for one in choice) for choice in choices)
    assert chance_of_finding(forged, total, looked_at) == pytest.approx(hit / len(choices))


def test_what_cannot_be_remade_is_said(runs, monkeypatch, capsys, tmp_path):
    path = next(path for path in find_records(runs) if "clean" in path.name)
    record = load_record(path)
    with monkeypatch.context() as patch:
        patch.setattr(rerunning, "environment", lambda device: record.environment.model_copy(update={"packages": {}}))
        assert main(["records", "verify", str(path)]) == 2
        assert "was made with robustbench-kpca" in capsys.readouterr().err
        assert main(["records", "verify", str(path), "--other-versions"]) == 0
        assert "equal but for rounding" in capsys.readouterr().out
    for words, text in (
        ((), "which command"), (("evaluate(ViT, …)",), "made from Python"),
        ((*record.command, "--checkpoint", "gone.safetensors"), "gone.safetensors"),
        ((*record.command, "--data", str(tmp_path / "gone")), "gone"),
        ((*record.command, "--limit", "19"), "samples of 'digits' \\(19\\)"),
        ((*record.command, "--model", "symvit_digits"), "symvit_digits for 'vit_digits'"),
    ):  # fmt: skip
        with pytest.raises(BadInputError, match=text):
            rerun(record.model_copy(update={"command": words}).attach(record.outcomes))


def test_a_record_from_python_names_the_call_and_is_remade_with_its_objects():
    model, data = load_model("vit_digits"), load_data("digits", limit=12)
    record = evaluate(model, data, protocol="fgsm-linf-1_255", eps="2/255", batch_size=8, audit=False)
    (call,) = record.command
    assert call == (
        "evaluate(VisionTransformer, digits test, 12 samples, protocol='fgsm-linf-1_255', seed=0, batch_size=8, "
        "eps='2/255')"
    ).replace("VisionTransformer", type(model).__name__)
    assert rerun(record, model, data).equal
    with pytest.raises(BadInputError, match="made from Python"):
        rerun(record)


def test_the_rounding_policy():
    def outcomes(kind, **columns):
        count = len(next(iter(columns.values())))
        return Outcomes("classification", kind, {"sample": np.array([str(i) for i in range(count)], object), **columns})

    before = outcomes("clean", prediction=np.array([1, 2]), confidence=np.array([0.5, 0.25]))
    near = outcomes("clean", prediction=np.array([1, 2]), confidence=np.array([0.50004, 0.25]))
    assert differences(before, near, exact=False) == []
    (found,) = differences(before, near, exact=True)
    assert (found.row, list(found.values)) == ("0", ["confidence"])
    endless = outcomes("clean", prediction=np.array([1, 2]), confidence=np.array([np.inf, 0.25]))
    assert [one.row for one in differences(before, endless, exact=False)] == ["0"]
    assert [one.row for one in differences(endless, before, exact=False)] == ["0"]
    assert differences(endless, endless, exact=False) == []
    other = outcomes("clean", prediction=np.array([1, 3]), confidence=np.array([0.5, 0.25]))
    assert [one.row for one in differences(before, other, exact=False)] == ["1"]
    attacked = outcomes("attack", broken_by=np.array(["pgd", ""], object), l2=np.array([0.1, 0.2]))
    later = outcomes("attack", broken_by=np.array(["fab", ""], object), l2=np.array([0.3, 0.2]))
    stands = outcomes("attack", broken_by=np.array(["", ""], object), l2=np.array([0.1, 0.2]))
    assert differences(attacked, later, exact=False) == []
    assert [one.row for one in differences(attacked, stands, exact=False)] == ["0"]
    missing = outcomes("attack", broken_by=np.array(["pgd"], object), l2=np.array([0.1]))
    assert [one.row for one in differences(attacked, missing, exact=False)] == ["1"]


def pixels(*rows):
    columns = ("class", "intersection", "truth", "predicted")
    cell = {"sample": "a", "corruption": "none", "severity": 0}
    table = task_named("segmentation").table("clean")
    return Outcomes.from_rows(table, [cell | dict(zip(columns, row, strict=True)) for row in rows])


def test_a_few_pixels_may_change_class_on_another_processor():
    before = pixels((0, 90, 100, 100), (1, 50, 60, 64))
    few = pixels((0, 86, 100, 96), (1, 50, 60, 63), (2, 0, 0, 4))
    assert not differences(before, few, exact=False)
    assert not differences(few, before, exact=False)
    assert len(differences(before, few, exact=True)) == 3
    for more in [(0, 85, 100, 97), (0, 90, 100, 105), (0, 90, 99, 100)]:
        assert len(differences(before, pixels(more, (1, 50, 60, 64)), exact=False)) == 1
    assert len(differences(before, pixels((0, 90, 100, 100), (1, 50, 60, 64), (2, 0, 0, 5)), exact=False)) == 1
