"""Sequences from the command line: train, evaluate, record, check; lists, waves and a problem from files."""

import pytest
import torch

from robustbench_kpca.cli.main import main
from robustbench_kpca.records.record import find_records, load_record
from robustbench_kpca.training.recipe import load_recipe

LISTS = "listops:test=40,val=20,train=200"
pytestmark = pytest.mark.usefixtures("few_resamples")


def trained(tmp_path, recipe, *settings):
    more = [part for setting in ("epochs=1", "warmup_epochs=0", *settings) for part in ("--set", setting)]
    assert main(["train", recipe, "-o", str(tmp_path), "--name", "m", "-q", *more]) == 0
    return str(tmp_path / "m.safetensors")


def records(folder):
    return {record.spec.protocol.name: record for record in map(load_record, find_records(folder))}


@pytest.mark.parametrize("kind", ["softmax", "primal"])
def test_lists_from_recipe_to_record(tmp_path, kind):
    weights = trained(tmp_path, f"{kind}_listops", f"data={LISTS}")
    words = f"eval -m {kind}_seq_listops --checkpoint {weights} --data {LISTS} -p clean -p word-swap"
    assert main([*words.split(), "-o", str(tmp_path / "runs")]) == 0
    found = records(tmp_path / "runs")
    assert found["clean"].spec.data.name == "listops-test40-val20-train200"
    swapped = found["word-swap"].outcomes
    assert len(swapped) == 40 * 6
    assert {"clean_accuracy", "corruption_accuracy"} <= set(found["word-swap"].metrics)
    clean = swapped.where(swapped["severity"] == 0)["prediction"]
    assert clean.tolist() == found["clean"].outcomes["prediction"].tolist()
    runs = str(tmp_path / "runs")
    assert main(["check", runs, "--baseline", runs, "--fail", "corruption_accuracy:-1pp"]) == 0
    asked = ["-m", f"{kind}_seq_listops", "--set=model.untrained=true", "--data", LISTS, "-p", "pgd20-linf-8_255"]
    assert main(["eval", *asked]) == 2


ARENA = {
    "bytes": ("bytes:length=16,test=12,val=4,train=32", 16),
    "retrieval": ("retrieval:length=16,test=12,val=4,train=32", 16),
    "pathfinder": ("pathfinder:side=10,contour=2,distractors=0,test=12,val=4,train=32", 100),
    "pixels": ("pixels:side=4,train=40:digits", 16),
}


@pytest.mark.parametrize("size", [pytest.param(one, marks=[pytest.mark.slow] * (one != "retrieval")) for one in ARENA])
def test_the_arena_from_recipe_to_record(tmp_path, size):
    data, length = ARENA[size]
    weights = trained(tmp_path, f"primal_{size}", f"data={data}", f"model_options.length={length}")
    options = load_recipe(f"primal_{size}", {"model_options.length": length})[1].model_options
    given = [word for key, value in options.items() for word in ("--set", f"model.{key}={value}")]
    words = f"eval -m primal_seq_{size} --checkpoint {weights} --data {data} --limit 12 -p clean -p word-swap"
    assert main([*words.split(), *given, "-o", str(tmp_path / "runs")]) == 0
    found = records(tmp_path / "runs")
    assert len(found["clean"].outcomes) == 12
    assert len(found["word-swap"].outcomes) == 12 * 6


def test_a_problem_from_files(tmp_path, capsys):
    rng = torch.Generator().manual_seed(0)
    for part, count in (("TRAIN", 20), ("TEST", 8)):
        rows = ["@dimensions 2", "@classLabel true a b", "@data"]
        for index in range(count):
            values = torch.randn(2, 12, generator=rng) + 2 * (index % 2)
            rows.append(":".join(",".join(f"{v:.4f}" for v in row) for row in values.tolist()) + ":" + "ab"[index % 2])
        (tmp_path / f"Toy_{part}.ts").write_text("\n".join(rows))
    shape = {"length": 12, "num_classes": 2}
    options = [f"model_options.{key}={value}" for key, value in shape.items()]
    weights = trained(tmp_path, "softmax_waves", f"data=uea:{tmp_path}", *options)
    model = [part for key, value in shape.items() for part in ("--set", f"model.{key}={value}")]
    asked = ["eval", "-m", "softmax_seq_waves", "--checkpoint", weights, "--data", f"uea:{tmp_path}", *model]
    asked += ["-o", str(tmp_path / "runs"), "--audit", "none"]
    assert main([*asked, "-p", "signal-corruptions", "-p", "signal-pgd20-linf-1_10"]) == 0
    found = records(tmp_path / "runs")
    assert len(found["signal-corruptions"].outcomes) == 8 * 21
    assert float(found["signal-pgd20-linf-1_10"].outcomes["linf"].max()) <= 0.1 + 1e-6
    capsys.readouterr()
    asked = ["-m", "softmax_seq_waves", "--set=model.untrained=true", "--data", f"uea:{tmp_path}", "-p", "clean"]
    assert main(["eval", *asked]) == 2
    assert "length" in capsys.readouterr().err


def test_a_classifier_of_texts_is_refused_other_words_under_the_same_numbers(tmp_path, capsys):
    for name, first, second in (("mine", "good film", "bad film"), ("theirs", "bad film", "good film")):
        (tmp_path / name).mkdir()
        rows = "".join(f"{text}\t{label}\n" for text, label in ((first, 1), (f"{second} {second}", 0)))
        for part in ("train", "val", "test"):
            (tmp_path / name / f"{part}.tsv").write_text(f"text\tlabel\n{rows}")
    small = {"vocabulary": 6, "length": 128, "depth": 1, "embed_dim": 8, "num_heads": 1}
    options = [f"model_options.{key}={value}" for key, value in small.items()]
    weights = trained(tmp_path, "softmax_texts", f"data=texts:{tmp_path / 'mine'}", *options)
    model = [part for key, value in small.items() for part in ("--set", f"model.{key}={value}")]
    asked = ["eval", "-m", "softmax_seq_texts", "--checkpoint", weights, "-p", "clean", "-o", str(tmp_path), *model]
    assert main([*asked, "--data", f"texts:{tmp_path / 'mine'}"]) == 0
    assert main([*asked, "--data", f"texts:{tmp_path / 'theirs'}"]) == 2
    assert "another vocabulary than data 'texts-theirs'" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["max_shift=1", "hflip=0.5"])
def test_what_is_for_images_is_refused_in_training(tmp_path, capsys, change):
    assert main(["train", "softmax_listops", "-o", str(tmp_path), "--set", f"data={LISTS}", "--set", change]) == 2
    assert "for tokens" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
