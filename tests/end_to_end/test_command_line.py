"""The commands as a user meets them: what works, and one line with exit code 2 for what cannot."""

import json
import pickle
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from attack_checks import USUAL
from PIL import Image

from robustbench_kpca.cli.main import main
from robustbench_kpca.models.bundle import WEIGHTS, bundled
from robustbench_kpca.protocols.presets import board_path
from robustbench_kpca.records.record import find_records, load_record
from robustbench_kpca.report.pictures import grid
from robustbench_kpca.training.schedules import read_recipe

pytestmark = pytest.mark.usefixtures("elsewhere", "few_resamples")
EVAL = ["eval", "-m", "symvit_digits", "-p", "clean", "-o", "out"]


def rbk(*arguments: str) -> int:
    return main(list(arguments))


@pytest.fixture
def pictures(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "tree" / name).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(
                tmp_path / "tree" / name / f"{i}.png"
            )
    return tmp_path / "tree"


class _Evil:
    def __reduce__(self):
        return (print, ("code ran",))


def prepare_broken_things(folder: Path) -> None:
    (folder / "evil.pth").write_bytes(pickle.dumps(_Evil(), protocol=2))
    (folder / "file").write_text("x")
    (folder / "empty").mkdir()
    (folder / "classes" / "a").mkdir(parents=True)
    (folder / "classes" / "a" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    protocol = USUAL + "[[stage]]\n"
    good = 'attack = "pgd"\nrestarts = 1\nsteps = 2\nstep_size = "0.5 eps"\nrandom_start = true\n'
    (folder / "typo.toml").write_text(protocol + good.replace("steps", "stpes", 1))
    (folder / "attack.toml").write_text(protocol + good.replace("pgd", "pdg", 1))
    (folder / "broken.toml").write_text("kind = ")
    (folder / "latin.toml").write_bytes("é = 1\n".encode() + "# é".encode("latin-1"))
    (folder / "newer.record.json").write_text('{"schema_version": 5}')
    (folder / "recipe.toml").write_text('title = "t"\n')
    recipe = read_recipe("symvit_digits")[1]
    (folder / "optimizer.toml").write_text(recipe.replace('"adamw"', '"adamww"'))
    (folder / "classes.toml").write_text(recipe.replace("model_options = {}", "model_options = { num_classes = 3 }"))
    (folder / "lazy.toml").write_text(protocol + good.replace('"0.5 eps"', "0"))
    (folder / "wrong.py").write_text("raise RuntimeError('no')\n")
    (folder / "latin").mkdir()
    (folder / "latin" / "labels.csv").write_bytes("file,label\né.png,1\n".encode("latin-1"))


PGD = "eval -m symvit_digits -p pgd20-linf-8_255 -o out"
BAD = {
    "-m symvit_digit": "'symvit_digit' ... did you mean 'symvit_digits'",
    "-p pgd20-linf-8_225": "'pgd20-linf-8_225' ... did you mean 'pgd20-linf-8_255'",
    "-p attack.toml": "'pdg' ... did you mean 'pgd'",
    "-p typo.toml": "'stpes' ... did you mean 'steps'",
    "-p broken.toml": "broken.toml is not valid TOML (at its end)",
    "-p latin.toml": "latin.toml cannot be read (no text in UTF-8 from byte 10 on)",
    "-p lazy.toml": "step_size = 0",
    "--curve 1/255,1/255": "--curve 1/255,1/255",
    "--curve 1/255,2/255": "a curve without an attack",
    "--curve 1/255 --set eps=2/255": "--set eps",
    "--independent": "--independent without --curve",
    "--set eps=1/255": "'clean' ... 'eps' ... draws",
    f"{PGD} --set eps=8": "8/255",
    f"{PGD} --set eps": "'eps' ... KEY=VALUE",
    f"{PGD} --set steps=0": "steps = 0",
    f"{PGD} --set steps={10**23}": "steps = 1000 ... 1,000,000",
    f"{PGD} --set draws=99999999": "draws = 99999999",
    f"{PGD} --set step_size=inf": "step_size = inf",
    f"{PGD} --seed -1": "seed = -1",
    f"{PGD} --batch-size 99999999": "batch_size = 99999999 ... 65,536",
    f"{PGD} --set steps=2 --set steps=3": "'steps' is set twice",
    "eval -m symvit_digits -o out -p pgd20-linf-3_255": "-p pgd20-linf-4_255 --set eps=3/255",
    "eval -m symvit_digits -o out -p noise-blur-contrast --set severities=[6]": "severity 6",
    "--data digts": "'digts' ... did you mean 'digits'",
    "--data empty": "empty",
    "--data classes": "broken.png",
    "--data latin": "labels.csv",
    "--split tset": "digits ... 'tset'",
    "--limit 0": "--limit = '0'; expected a whole number of at least 1; see: rbk eval --help",
    "-p fgsm-linf-1_255 --device abacus": "'abacus'",
    "reproduce chen2023 --plan --device abacus -o out": "'abacus'",
    "--checkpoint evil.pth": "evil.pth",
    "--set model.depht=3": "'depht' ... did you mean 'depth'",
    "--set model.untrained=3": "model.untrained = 3; expected true or false",
    "--set model.img_size=64": "ViT",
    "--tf32=3": "--tf32 takes no value",
    "--audit some": "--audit = 'some'; expected one of full, quick, none",
    "-m a,,b": "an empty name",
    "more": "rbk eval takes no argument 'more'",
    "eval -m vit_tiny_patch16_224 --data digits -p clean -o out": "--checkpoint",
    "eval -m timm:vit_tiny_patch16_24 --data digits -p clean -o out": "vit_tiny_patch16_24",
    "eval -m timm:vit_tiny_patch16_224 --set model.untrained=true --data digits -p clean": "32 x 32 ... --size",
    "eval -m resnet18 -p clean -o out": "timm:resnet18 or torchvision:resnet18",
    "eval -m no.module:f --data digits -p clean -o out": "no.module",
    "eval -m gone.py:f --data digits -p clean -o out": "gone.py cannot be read",
    "eval -m wrong:f -p clean -o out": "no data",
    "eval -m wrong:f --data digits -p clean -o out": "wrong",
    "eval -m symvit_digits -p clean -o file/out": "file/out",
    "eval -m symvit_digits": "rbk eval needs --protocol; see: rbk eval --help",
    "eval --modle x": "rbk eval has no option '--modle'; did you mean '--model'? see: rbk eval --help",
    "eval --plugin x.py": "rbk eval has no option '--plugin'; --plugin stands before the command: rbk --plugin … eval",
    "evla": "there is no command 'rbk evla'; did you mean 'eval'? see: rbk --help",
    "audit": "rbk audit needs MODEL; see: rbk audit --help",
    "records": "rbk records needs a command; known: show, verify",
    "records shwo": "there is no command 'rbk records shwo'; did you mean 'show'? see: rbk records --help",
    "records show gone.json": "*.record.json ... gone.json",
    "records show newer.record.json": "schema 5 ... schema 4 ... upgrade",
    "records show file": "file",
    "images draw curves --out": "--out needs a value; see: rbk images --help",
    "images draw adversarial -m vit_digits --images 99": "--images = '99'; expected ... from 1 to 24",
    "images draw corruptions file": "file",
    "images draw adversarial -m symvit_digits -p clean": "'clean'",
    "train optimizer.toml -o out": "'adamww'",
    "train classes.toml -o out": "3 classes ... 10",
    "train symvit": "'symvit'",
    "train recipe.toml -o out": "recipe.toml ... 'model'",
    "train symvit_digits -o file/out": "file/out",
    "--presets gone list models": "gone",
    "board render digit": "'digit' ... did you mean 'digits'",
    "board render digits --records empty -o out": "*.record.json ... empty",
    "board plan digit": "'digit'",
    "check empty --baseline empty --fail robust_accuracy:-2pp": "*.record.json ... empty",
    "list modles": "modles",
}
"""A command, or what is added to EVAL, and what its one line says."""
VERBS = ("audit", "board", "check", "eval", "evla", "images", "list", "records", "reproduce", "train", "--presets")


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A folder of broken things, in which no command may write."""
    folder = tmp_path_factory.mktemp("broken")
    prepare_broken_things(folder)
    return folder


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line_with_exit_code_two_and_writes_nothing(words, broken, capsys, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of wrong.py, which Python would do by itself
    monkeypatch.chdir(broken)
    before = sorted(broken.rglob("*"))
    arguments = words.split() if words.split()[0] in VERBS else [*EVAL, *words.split()]
    assert rbk(*arguments, *(["-q"] if arguments[0] == "eval" else [])) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("rbk: error: ")
    assert all(part in captured.err for part in BAD[words].split(" ... ")), captured.err
    assert "code ran" not in captured.out
    assert sorted(broken.rglob("*")) == before


def unpinned(folder):
    """Write the board of digits for whichever part of the digits its records are of; return its name."""
    text = board_path("digits").read_text()
    (folder / "mine").mkdir(exist_ok=True)
    lines = [line for line in text.splitlines() if not line.startswith("digest")]
    (folder / "mine" / "board.toml").write_text("\n".join(lines))
    return "mine"


def test_eval_show_leaderboard_and_plan(tmp_path, capsys):
    twice = "-m symvit_digits,symvit_digits_adv -m symvit_digits -p clean,fgsm-linf-8_255,clean --limit 40"
    assert rbk("eval", *twice.split(), "--audit", "none", "-o", "runs", "--json") == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["spec"]["model"]["name"] for record in records] == ["symvit_digits"] * 2 + ["symvit_digits_adv"] * 2
    files = find_records("runs")
    assert len(files) == 4
    assert rbk("records", "show", str(files[1]), "runs") == 0
    assert capsys.readouterr().out.count("from them: equal") == 5
    assert rbk("board", "render", unpinned(tmp_path), "--records", "runs", "-o", "board") == 0
    out = capsys.readouterr().out
    assert "symvit_digits_adv" in out
    assert "not run" in out
    assert (tmp_path / "board" / "index.html").is_file()
    assert rbk("board", "plan", unpinned(tmp_path), "--records", "runs") == 0
    plan = capsys.readouterr().out
    assert plan.startswith("4 of 84 runs ")
    lines = [line for line in plan.splitlines() if line.startswith("rbk eval")]
    both = "--protocol clean --protocol fgsm-linf-8_255"  # made above
    assert all(both not in line for line in lines if "--model symvit_digits " in line)
    several = next(line for line in lines if "--model vit_digits --model rpc_symvit_digits " in line)
    assert several.startswith("rbk eval --model vit_digits ")
    assert "--data digits --split test --seed 0 --out runs --protocol clean" in several


def test_a_kept_record_of_other_code_is_named(monkeypatch, capsys):
    """Nobody knows whether that code gives the same numbers."""
    for revision, said in (("a" * 40, ""), ("a" * 40, ""), ("b" * 40 + "+", "revision aaaaaaaa, this is")):
        monkeypatch.setattr("robustbench_kpca._engine.inference.environment.revision", lambda: revision)  # noqa: B023
        time.sleep(1)  # a record is kept if it was begun in an earlier second
        assert rbk(*EVAL, "--limit", "4") == 0
        shown = capsys.readouterr().err
        assert ("--fresh makes it again" in shown) == bool(said)
        assert said in shown
    assert "revision bbbbbbbb+;" in shown


def test_lists_are_whole_and_a_checkpoint_and_overrides_show_in_the_record(tmp_path, capsys):
    shutil.copy(WEIGHTS / "symvit_digits_adv.safetensors", tmp_path / "mine.safetensors")
    words = "-m rpc_symvit_digits --checkpoint mine.safetensors --set model.iterations=2 -o r -q"
    words += " -p pgd20-linf-8_255 --set eps=3/255 --limit 4 --batch-size 4 --audit none"
    assert rbk("eval", *words.split()) == 0
    record = load_record(find_records("r")[0])
    config = record.spec.model.config
    assert (config["name"], config["iterations"], config["lam"]) == ("rpc_symvit_digits", 2, 4.0)
    assert record.spec.model.name == "rpc_symvit_digits+iterations=2@mine"
    assert record.spec.protocol.resolved["eps"] == 3 / 255
    capsys.readouterr()
    for what in ("models", "attacks", "corruptions", "data", "protocols", "metrics", "boards", "recipes"):
        assert rbk("list", what, "--json") == 0
        assert json.loads(capsys.readouterr().out), what
    assert rbk("list", "machine", "--json") == 0
    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["torch"]["found"] == torch.__version__.partition("+")[0]
    assert rows["bundled models"]["found"] == str(len(bundled()))


def test_pictures(pictures, capsys, monkeypatch):
    shown = []
    monkeypatch.setattr("robustbench_kpca.report.pictures.grid", lambda *of: shown.append(of) or grid(*of))
    assert rbk("images", "draw", "adversarial", "-m", "vit_digits", "-o", "adv.png", "--images", "3") == 0
    assert rbk("images", "draw", "corruptions", str(pictures / "a" / "0.png"), "-o", "grid.png") == 0
    for name in ("adv.png", "grid.png"):
        with Image.open(name) as image:
            assert min(image.size) > 200
    _, _, difference = shown[0][0]
    assert max(np.abs(picture - 0.5).max() for picture in difference) == pytest.approx(0.5)
    capsys.readouterr()


def test_bugs_are_one_line_with_exit_code_three(tmp_path, monkeypatch, capsys):
    import robustbench_kpca.evaluation.part as run

    monkeypatch.setattr(run, "show_all", lambda *args, **kwargs: 1 / 0)
    assert rbk(*EVAL, "-q") == 3
    assert "this is a bug" in capsys.readouterr().err
