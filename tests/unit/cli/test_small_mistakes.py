"""Small mistakes at the command line and in a call: each is taken as it was meant, or answered by what to type."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli import _console
from robustbench_kpca.cli.main import main

pytestmark = pytest.mark.usefixtures("few_resamples")
NET = """
import torch
from torch import nn


def two():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 2))


def one_channel():
    return nn.Sequential(nn.Conv2d(1, 2, 8), nn.Flatten())


def broken():
    raise RuntimeError("weights of version 3 expected\\nand more")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a network, its weights, and pictures of two classes with what macOS adds to archives."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    torch.save({"w": torch.zeros(1)}, tmp_path / "net.pt")
    for i, place in enumerate(["tt/test/eight", "tt/test/five", "tt/train/eight", "tt/test/__MACOSX/eight"]):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        for j in range(4):
            Image.fromarray(np.full((8, 8, 3), 40 * i + j, np.uint8)).save(folder / f"{j}.png")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-m net.py:two --data tt -p clean", "give one: tt/test"),
        ("-m net.py:two --data tt/test -p clean --eps 0.03", "--set eps="),
        ("-m net.py:two --data tt/test -p PGD-20", "'pgd20-linf-8_255'"),
        ("-m net.pt --data tt/test -p clean", "--checkpoint net.pt"),
        ("-m net.py:two --data tt/test -p text-word-swap", "corrupts words of a text, but data 'tt' are images"),
        ("-m net.py:broken --data tt/test -p clean", "weights of version 3 expected)"),
        ("-m net.py:one_channel --data tt/test -p clean", "to have 1 channels, but got 3 channels"),
        ("-m net.py:two --data tt/test -p clean --device nowhere", "Expected one of"),
    ],
)
def test_the_answer_says_what_to_type_or_why(words, said, here, capsys):
    assert main(["eval", *words.split(), "-o", "runs"]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_what_a_table_of_two_classes_shows(here, capsys):
    """Folders are numbered in the order of their names, and the screen says so; top-5 of two classes says nothing."""
    assert main(["eval", *["-m", "net.py:two", "--data", "tt/test", "-p", "clean", "-o", "runs"]]) == 0
    printed = capsys.readouterr()
    assert "2 classes, in the order of their names (eight is 0, five is 1)" in printed.err
    assert "1 record in runs" in printed.err
    assert "top5" not in printed.out + printed.err
    head, *rows = printed.out.strip().splitlines()
    assert head.endswith("chance")
    assert all(row.split()[-1] == ("50.0" if "accuracy" in row else "–") for row in rows)


def test_folders_that_are_numbers_are_matched_by_number_and_one_thing_has_no_plural(here, capsys):
    (here / "tt/test/eight").rename(here / "tt/test/0")
    (here / "tt/test/five").rename(here / "tt/test/1")
    assert main(["eval", *["-m", "net.py:two", "--data", "tt/test", "-p", "clean", "-o", "runs", "--json"]]) == 0
    assert '"matched": "2 classes, by number"' in capsys.readouterr().out
    assert [_console.count(number, "record") for number in (0, 1, 2000)] == ["0 records", "1 record", "2,000 records"]


class Parts(nn.Module):
    """A model whose answer has parts, as those of transformers."""

    def __init__(self):
        super().__init__()
        self.inner = load_model("symvit_digits")
        self.eval()

    def forward(self, x):
        return type("Answer", (), {"logits": self.inner(x)})()


@pytest.mark.untyped
def test_a_call_takes_what_was_meant():
    model, (x, t) = load_model("symvit_digits"), load_data("digits", limit=16).tensors()
    asked = {"protocol": "fgsm-linf-8_255", "audit": False, "quiet": True}
    plain = evaluate(model, x, t, **asked, eps=0.03125)
    for given, data in ((model, (x, t)), (Parts(), (x, t)), (model, [x, t])):
        again = evaluate(given, *([data] if isinstance(data, list) else data), **asked, eps=torch.tensor(0.03125))
        assert again.outcomes.digest() == plain.outcomes.digest()
    assert again.spec.protocol.resolved["eps"] == 0.03125
    assert ("l2" in plain.outcomes, "l3" in plain.outcomes) == (True, False)
    with pytest.raises(BadInputError, match=r"label -1 .*expected labels from 0"):
        evaluate(model, x, -torch.ones_like(t), **asked)
    with pytest.raises(BadInputError, match="a state dict of"):
        evaluate(model.state_dict(), x, t, **asked)
