"""Adversarial images are kept exactly and survive a kill; a report shows what records say."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from robustbench_kpca import evaluate, load_data, load_model, load_record
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.protocols.scenario import parse_scenario
from robustbench_kpca.records import images as kept_images
from robustbench_kpca.records.images import KeptImages, load_images
from robustbench_kpca.records.record import find_records
from robustbench_kpca.records.spec import ProtocolInfo
from robustbench_kpca.report.inferred import infer
from robustbench_kpca.report.table import frame
from robustbench_kpca.verification.kept import recheck

BOARD = Path(__file__).parents[3] / "leaderboards" / "digits-attacks" / "records"
pytestmark = pytest.mark.usefixtures("few_resamples")


def attacked(out, keep, protocol="pgd20-linf-8_255", **changes):
    how = {"steps": 3} | changes
    data, model = load_data("digits", limit=24), load_model("vit_digits_adv")
    return evaluate(
        model, data, protocol=protocol, name="vit_digits_adv", batch_size=8, out=out, keep_adversarial=keep,
        audit=False, **how,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    attacked(out, 10, eps="40/255")
    return out


@pytest.fixture(scope="module")
def record(folder):
    return load_record(next(folder.glob("*.record.json")))


def test_forward_passes_on_the_images_repeat_every_verdict(folder, record):
    images = load_images(folder, record.images_file)
    assert images.samples == tuple(load_data("digits", limit=24).in_order().spread(10).ids)
    clean, worst = images.floats()
    original, _ = load_data("digits", limit=24).in_order().spread(10).tensors()
    assert np.array_equal(clean, original.numpy())
    rows = {row["sample"]: row for row in record.outcomes.rows()}
    with torch.no_grad():
        predicted = load_model("vit_digits_adv")(torch.from_numpy(worst)).argmax(1).tolist()
    assert {row["broken_by"] for row in rows.values()} >= {"", "pgd"}
    for sample, answer, before, after in zip(images.samples, predicted, clean, worst, strict=True):
        assert answer == rows[sample]["prediction"]
        assert np.abs(after - before).max() == pytest.approx(rows[sample]["linf"], abs=1e-7)
        assert np.abs(after - before).max() <= 40 / 255 + 1e-6


def test_recheck_finds_what_was_altered(folder, record, tmp_path, capsys):
    images, model = load_images(folder, record.images_file), load_model("vit_digits_adv")
    assert recheck(record, images, model).differences == ()
    clean, worst = images.floats()
    lost = next(k for k, name in enumerate(images.samples) if (worst[k] != clean[k]).any() and broken(record, name))
    swapped = worst.copy()
    swapped[lost] = clean[lost]  # a broken sample whose image breaks nothing
    (line,) = recheck(record, KeptImages.of(images.samples, clean, swapped), model).differences
    assert line.startswith(f"{images.samples[lost]}: predicted ")
    far = worst.copy()
    far[lost] += 0.02  # outside the ball, and perhaps outside the box
    lines = recheck(record, KeptImages.of(images.samples, clean, far), model).differences
    assert any("perturbed by 0.17" in line for line in lines)
    with pytest.raises(BadInputError, match="the model has weights"):
        recheck(record, images, load_model("vit_digits"))
    assert main(["records", "verify", str(folder), "--kept-images"]) == 0
    assert "10 samples, 0 differences" in capsys.readouterr().err
    assert main(["records", "verify", str(folder), "--kept-images", "--json"]) == 0
    [shown] = json.loads(capsys.readouterr().out)
    assert (shown["samples"], shown["differences"]) == (10, [])
    assert main(["records", "verify", str(BOARD), "--kept-images"]) == 2


@pytest.mark.parametrize("command", ["rbk eval --model evil.py:make --data digits --protocol p", ""])
def test_recheck_runs_no_code_that_a_record_names(folder, tmp_path, monkeypatch, capsys, command):
    """Neither that of its command, nor that of its name where it has none."""
    shutil.copytree(folder, tmp_path / "theirs")
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("from pathlib import Path\nPath('it-ran').touch()\n")
    (path,) = find_records("theirs")
    content = json.loads(path.read_text())
    content["spec"]["model"]["name"] = "evil.py:make"
    path.write_text(json.dumps(content | {"command": command.split()}))
    assert main(["records", "verify", "theirs", "--kept-images"]) == 2
    assert "the record names code: the file evil.py would be run" in capsys.readouterr().err
    assert not Path("it-ran").exists()


def broken(record, sample):
    return {row["sample"]: row["broken_by"] for row in record.outcomes.rows()}[sample] == "pgd"


def test_outcomes_do_not_depend_on_what_is_kept_and_a_record_without_enough_images_is_made_again(
    folder, record, tmp_path
):
    assert attacked(tmp_path, 0, eps="40/255").outcomes.digest() == record.outcomes.digest()
    assert not list(tmp_path.glob("*.images.npz"))
    first = attacked(tmp_path, 2, eps="40/255")
    assert attacked(tmp_path, 2, eps="40/255").created == first.created
    more = attacked(tmp_path, 5, eps="40/255")
    assert more.images_file.samples == 5
    assert attacked(tmp_path, 3, eps="40/255").images_file == more.images_file


def test_images_survive_an_interruption(folder, record, tmp_path, monkeypatch):
    """The run is stopped after each journal entry, again and again; the file is the same in the end."""
    from robustbench_kpca._engine.inference.journal import Journal

    class StopError(Exception):
        pass

    write = Journal.write

    def write_and_stop(journal, content):
        write(journal, content)
        if "undecided" in content:
            raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "due", lambda journal: True)
        patch.setattr(Journal, "write", write_and_stop)
        for _ in range(4):
            with pytest.raises(StopError):
                attacked(tmp_path, 10, eps="40/255")
    again = attacked(tmp_path, 10, eps="40/255")
    assert again.outcomes.digest() == record.outcomes.digest()
    assert again.images_file.sha256 == record.images_file.sha256
    assert not list(tmp_path.rglob(".*partial*"))


def test_storage_is_exact_and_small():
    rng = np.random.default_rng(0)
    whole = (rng.integers(0, 256, (3, 1, 4, 4)).astype(np.float32)) / np.float32(255)
    odd = rng.random((3, 1, 4, 4), np.float32)
    kept = KeptImages.of(("a", "b", "c"), whole, odd)
    assert (kept.clean.dtype, kept.attacked.dtype) == (np.uint8, np.float32)
    assert all(np.array_equal(one, other) for one, other in zip(kept.floats(), (whole, odd), strict=True))
    assert kept.to_file() == kept.to_file()


def test_altered_or_hostile_images_are_refused(folder, record, tmp_path, monkeypatch):
    stated = record.images_file
    path = tmp_path / stated.file
    with pytest.raises(BadInputError, match="cannot be read"):
        load_images(tmp_path, stated)
    path.write_bytes((folder / stated.file).read_bytes()[:-1])
    with pytest.raises(BadInputError, match="SHA-256 differs"):
        load_images(tmp_path, stated)
    with pytest.raises(BadInputError, match="holds no images"):
        load_images(tmp_path, stated.model_copy(update={"sha256": kept_images.sha256(path.read_bytes())}))
    with pytest.raises(BadInputError, match="expected a plain file name"):
        load_images(tmp_path / "sub", stated.model_copy(update={"file": f"../{stated.file}"}))
    monkeypatch.setattr(kept_images, "LIMIT", 2_000)
    path.write_bytes((folder / stated.file).read_bytes())
    with pytest.raises(BadInputError, match="at most 2,000"):
        load_images(tmp_path, stated)


def test_too_many_images_and_those_of_scenes_are_refused_before_the_attack(tmp_path, monkeypatch):
    monkeypatch.setattr("robustbench_kpca.evaluation.kept.LIMIT", 100_000)
    with pytest.raises(BadInputError, match=r"take 245,760 bytes; expected at most 100,000; keep 4"):
        attacked(tmp_path, 10)
    how = {"protocol": "segpgd20-linf-1_255", "steps": 1, "batch_size": 1, "audit": False}
    with pytest.raises(BadInputError, match="no images are kept for segmentation"):
        evaluate("symvit_shapes", load_data("shapes", limit=1), out=tmp_path, keep_adversarial=1, **how)


def board_records(*models):
    return [load_record(path) for model in models for path in sorted(BOARD.glob(f"{model}__*.record.json"))]


def under(record, name, **resolved):
    scenario = parse_scenario({**record.spec.protocol.resolved, **resolved}, name)
    protocol = ProtocolInfo(name=name, digest=scenario.digest(), resolved=scenario.model_dump(mode="json"))
    return record.model_copy(update={"spec": record.spec.model_copy(update={"protocol": protocol})}).attach(
        record.outcomes
    )


def test_a_worst_case_is_of_one_ball_and_counts_an_attack_once():
    (one,) = [record for record in board_records("vit_digits") if record.spec.protocol.name == "pgd20-linf-8_255"]
    free = {"clip": False, "space": "normalised"}
    made = [
        under(one, "a"), under(one, "b"), under(one, "c", labels="predicted", policy="strongest"),
        under(one, "d", **free), under(one, "e", **free, labels="predicted", policy="strongest"),
    ]  # fmt: skip
    (board,), _ = infer(made, title="T", command="rbk board report x")
    found = {column.title: column.protocol for column in board.spec.column[-2:]}
    assert found == {
        "worst of 2, linf 8/255 · pixel space · inside [0, 1] · n = 64": ("a", "c"),
        "worst of 2, linf 8/255 · normalised space · not clipped · n = 64": ("d", "e"),
    }


def test_a_board_is_inferred_with_the_worst_case_of_several_attacks(tmp_path):
    records = board_records("vit_digits", "vit_digits_adv")
    (board,), left_out = infer(records, title="T", command="rbk board report x")
    assert left_out == 0
    assert board.ranked() == ["vit_digits_adv", "vit_digits"]
    titles = [column.title for column in board.spec.column]
    assert titles[0] == "clean · n = 64"
    assert titles[-2:] == ["worst of 2, l2 128/255 · n = 64", "worst of 7, linf 8/255 · n = 64"]
    linf = [one.outcomes["broken_by"] == "" for one in records if one.spec.model.name == "vit_digits"
            and one.spec.protocol.resolved.get("norm") == "linf"]  # fmt: skip
    worst = board.estimate("vit_digits", board.spec.column[-1])
    assert worst.value == np.logical_and.reduce(linf).mean()
    attacks = [str(path) for path in sorted(BOARD.glob("vit_digits__*linf*.record.json"))]
    assert main(["board", "report", *attacks, "-o", str(tmp_path), "-q"]) == 0
    assert "worst of 7, linf 8/255" in (tmp_path / "README.md").read_text()


def test_a_report_has_one_board_a_data_set(folder, tmp_path, capsys):
    """Images and texts in one folder, as after the rows of the README."""
    texts = tmp_path / "texts"
    evaluate(load_model("rpc_lm_tiny"), load_data("grammar", limit=3), protocol="clean", out=texts)
    assert main(["board", "report", str(folder), str(texts), "-o", str(tmp_path), "--json"]) == 0
    assert [board["data"] for board in json.loads(capsys.readouterr().out)] == ["digits", "grammar"]
    for name, n in (("digits", 24), ("grammar", 3)):
        assert f"n = {n}" in (tmp_path / name / "README.md").read_text()
        names = {"README.md", "index.html", "board.csv", "board.json"}
        assert {file.name for file in (tmp_path / name).iterdir()} == names
    one = ["board", "report", str(folder), str(texts), "-o", str(tmp_path), "--metric"]
    assert main([*one, "robust_accuracy", "-q"]) == 0
    assert "robust" in (tmp_path / "board.csv").read_text(), "one data set has this metric: its page is the board"
    assert main([*one, "miou"]) == 2


def test_the_attack_that_leaves_the_worst_ranks():
    """Of perplexities the highest mean is the worst."""
    texts = sorted((BOARD.parents[1] / "grammar" / "records").glob("*words*.record.json"))
    records = [load_record(path) for path in texts]
    (board,), _ = infer(records, title="T", command="c", metrics=["attacked_perplexity"])
    means = {
        column.title: np.mean([board.estimate(row, column).value for row in board.ranked()])
        for column in board.spec.column
    }
    assert len(means) > 1
    assert board.spec.rank_by == max(means, key=means.get)


def test_own_settings_seeds_and_data_are_told_apart(folder, record):
    """A protocol that no file holds is taken from its record, and a record of another seed is left out."""
    (board,), _ = infer([record], title="T", command="c")
    assert list(frame(board).columns) == ["#", "Model", f"{record.spec.protocol.name} · n = 24"]
    other = record.model_copy(update={"spec": record.spec.model_copy(update={"seed": 1})}).attach(record.outcomes)
    assert infer([record, other, other], title="T", command="c")[0][0].spec.seed == 1
    assert infer([record, other], title="T", command="c")[1] == 1
    (mixed,), _ = infer([record, *board_records("vit_digits")], title="T", command="c")
    assert len({(one.data, one.limit) for one in mixed.spec.column}) == 2


def test_images_of_python_evaluations_are_kept_too(linear, tmp_path):
    """The attack moves every pixel of a linear model by eps: the image is known in closed form."""
    images = 0.25 + 0.5 * torch.rand(4, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    model, labels = linear(torch.ones(1, 2, 2), -1.0).eval(), torch.ones(4, dtype=torch.long)
    how = {"protocol": "fgsm-linf-8_255", "eps": 0.125, "audit": False, "batch_size": 4, "keep_adversarial": 4}
    made = evaluate(model, images, labels, out=tmp_path, **how)
    kept = load_images(tmp_path, made.images_file)
    assert np.allclose(kept.floats()[1], images.numpy() - 0.125, atol=1e-6)
    assert recheck(made, kept, model).differences == ()
    with pytest.raises(BadInputError, match="a folder for records"):
        evaluate(model, images, labels, **how)
