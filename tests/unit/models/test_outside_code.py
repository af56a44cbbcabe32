"""What a model's name would run is known before anything is imported; no file from a stranger runs it unasked."""

import os
import pickle
from pathlib import Path

import pytest
from board_pages import board_text

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.models.outside_code import outside_code
from robustbench_kpca.verification.stated import AS_RECORDED, Conditions, load_stated

CODE = """from pathlib import Path
from robustbench_kpca import load_model
Path("it-ran").touch()
make = lambda: load_model("symvit_digits")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with code that leaves a mark when it runs."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(CODE)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        *("vit_digits", "rpc_symvit_tiny", "no_such_model", "timm:resnet18", "torchvision:resnet18", "timm:a.py:b"),
        *("cbsa:CBT-T", "robustbench:imagenet/Linf/Singh2023Revisiting_ViT-S-ConvStem"),
    ],
)
def test_names_that_run_no_code_from_outside(name):
    assert outside_code(name, {"num_classes": 3}, "weights.safetensors") == ""


@pytest.mark.parametrize(
    ("name", "options", "checkpoint", "text"),
    [
        ("mine.py:make", {"depth": 2}, None, "the file mine.py would be run, and make(depth=2) called"),
        ("vit_digits", {"attention": "mine.py:Mine"}, None, "the file mine.py would be run for its attention"),
        ("os:system", {"command": "ls"}, None, "the module os would be run, and system(command='ls') called"),
        ("hf:a/b", {}, None, "hf would load and run a/b"),
        ("onnx:a.onnx", {}, None, "onnx would load and run a.onnx"),
        ("robustbench:Wong2020Fast", {}, None, "robustbench would load and run Wong2020Fast"),
        ("timm:resnet18", {"pretrained_cfg_overlay": {"url": "http://x"}}, None, "http://x"),
        ("vit_digits", {}, "a.pth", "a.pth would be fetched or unpickled"),
        ("vit_digits", {}, "hf-hub:a/b.safetensors", "hf-hub:a/b.safetensors would be fetched"),
    ],
)
def test_what_would_run_is_said(name, options, checkpoint, text):
    assert text in outside_code(name, options, checkpoint)


def test_code_runs_only_where_it_may(here):
    with pytest.raises(BadInputError, match=r"the record names code: the file mine.py would be run.*add --run-code"):
        load_stated("m", ModelRequest("mine.py:make"), "the record", AS_RECORDED)
    assert not Path("it-ran").exists()
    load_stated("m", ModelRequest("mine.py:make"), "the record", Conditions(run_code=True))
    assert Path("it-ran").exists()


def test_weights_that_a_stranger_names_are_not_unpickled(here):
    class Mark:
        def __reduce__(self):
            return os.mkdir, ("it-ran",)

    Path("w.pth").write_bytes(pickle.dumps({"model": Mark()}))
    with pytest.raises(BadInputError, match=r"w\.pth would be fetched or unpickled"):
        load_stated("m", ModelRequest("vit_digits", "w.pth"), "the board", AS_RECORDED)
    with pytest.raises(BadInputError, match="nothing else is unpickled"):  # weights that the user gives
        load_stated("m", ModelRequest("vit_digits"), "the board", Conditions(checkpoint="w.pth"))
    assert not Path("it-ran").exists()


@pytest.mark.parametrize(
    "asked",
    [
        ModelRequest("symvit_digits"), ModelRequest("mine.py:make"), ModelRequest("vit_digits", untrained=True),
        ModelRequest("vit_digits", "other.safetensors"),
    ],
)  # fmt: skip
def test_a_bundled_name_means_the_bundled_weights(asked):
    with pytest.raises(BadInputError, match=r"for 'vit_digits'; expected the bundled weights of that name"):
        load_stated("vit_digits", asked, "the record", Conditions(run_code=True))
    with pytest.raises(BadInputError, match="the bundled weights"):
        load_stated("vit_digits", ModelRequest("vit_digits"), "the record", Conditions(checkpoint="w.safetensors"))


RECIPE = "symvit_digits"
PACK = """title = "p"\nsource = "s"\nintro = "i"
[embedded]\nintro = "e"
[paper]\nintro = "e"\nsamples.test = { data = "digits", split = "test", limit = 8 }
arms.a = { title = "A", recipe = "mine.toml", seeds = [0] }
"""
TABLE = """kind = "table"\ntitle = "t"\nintro = "i"\narms = ["a"]\nrank_by = "C"
[[column]]\ntitle = "C"\nsamples = "test"\nprotocol = "clean"\nmetric = "clean_accuracy"
"""


@pytest.mark.parametrize(
    "words", [["--plan"], ["--budget", "1h", "--trained"], ["--pages"]], ids=["plan", "budget", "pages"]
)
def test_a_pack_runs_no_code(here, capsys, words):
    """A recipe that names code, with weights that lie where a training would leave them."""
    from robustbench_kpca.training.schedules import read_recipe

    Path("pack").mkdir()
    Path("pack/pack.toml").write_text(PACK)
    Path("pack/table-1.toml").write_text(TABLE)
    text = read_recipe(RECIPE)[1]
    Path("mine.toml").write_text(text.replace('model = "symvit_digits"', 'model = "mine.py:make"'))
    folder = Path("out/trainings/mine.toml-s0")
    folder.mkdir(parents=True)
    (folder / "mine.toml-s0.safetensors").write_bytes(b"")
    assert main(["reproduce", "pack", "--scale", "paper", "-o", "out", *words]) == 2
    assert "no architecture (in recipe mine.toml) named 'mine.py:make'" in capsys.readouterr().err
    assert not Path("it-ran").exists()


BOARD = board_text(["m"], {"C": ("clean", "clean_accuracy")}, limit=8) + '[[model]]\nname = "m"\n'


def test_a_plan_says_what_its_commands_would_run(here, capsys):
    Path("board.toml").write_text(
        BOARD + 'source = "mine.py:make"\noptions = { text = "; touch it-ran", fused = false }'
    )
    assert main(["board", "plan", "."]) == 0
    shown = capsys.readouterr()
    assert "--set 'model.text=; touch it-ran' --set model.fused=false" in shown.out
    assert "before you run the command of m, read what the board names: the file mine.py would be run" in shown.err
    assert not Path("it-ran").exists()
