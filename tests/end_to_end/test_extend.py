"""docs/extend.md: every file that it shows is written as it stands, every command runs, and examples are short."""

import re
import shlex
from pathlib import Path

import pytest

from robustbench_kpca import load_model, place
from robustbench_kpca.cli.main import main
from robustbench_kpca.metrics import METRICS
from robustbench_kpca.training.schedules import read_recipe

PAGE = (Path(__file__).parents[2] / "docs" / "extend.md").read_text("utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
MOST_LINES = 15
ADDRESS = "my_attention.py:Cosine"


def blocks(text, *languages):
    found = re.findall(rf"^```({'|'.join(languages)})\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [block for _, block in found]


def test_there_are_six_examples_of_at_most_fifteen_lines():
    examples = [block for part in SECTIONS.values() for block in blocks(part, "python")]
    assert len(examples) == len(SECTIONS) == 6
    for example in examples:
        written = [line for line in example.splitlines()[1:] if line.strip()]
        assert len(written) <= MOST_LINES, example


@pytest.mark.usefixtures("few_resamples", "metrics_of_a_test", "fork")
@pytest.mark.parametrize("title", SECTIONS)
def test_an_example(title, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RBK_PLUGINS", "")
    for block in blocks(SECTIONS[title], "python", "toml"):
        name = re.match(r"# (\w+\.(py|toml))\n", block)[1]
        Path(name).write_text(block)
    commands = [line for block in blocks(SECTIONS[title], "sh") for line in block.splitlines()]
    assert commands
    for command in commands:
        words = shlex.split(command.replace("--limit 64", "--limit 8"))[1:]
        short = {"eval": ["--audit", "none"], "train": ["--set", "epochs=1"]}
        more = [word for verb, added in short.items() if verb in words for word in added]
        METRICS.added.clear()  # a command is a program of its own
        assert main([*words, *more]) == 0, capsys.readouterr().err
    if title == "An attention":
        kinds = [type(block.attn).__name__ for block in place(load_model("fan_digits"), ADDRESS, "last").blocks]
        assert kinds == ["TokenMix", "TokenMix", "Cosine"]
        Path("my.toml").write_text(read_recipe("vit_digits")[1].replace("{}", f"{{attention = '{ADDRESS}'}}"))
        assert main(["train", "my.toml"]) == 2
        assert "recipe my.toml names code" in capsys.readouterr().err
    if title == "A metric":
        assert "lost" in capsys.readouterr().out
