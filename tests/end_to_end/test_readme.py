"""What the README shows works as it stands."""

import csv
import json
import lzma
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import stats
from stand_ins import few_digits, short_audits

from robustbench_kpca.cli.main import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


EXAMPLES = (ROOT / "docs" / "cookbook.md").read_text()


@pytest.mark.usefixtures("fork")
def test_the_python_example(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for page in (README, EXAMPLES):
        code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
        with few_digits(40), short_audits():
            exec(code, {})
        value, low, high, n = re.findall(r"\d[\d.]*", capsys.readouterr().out)
        assert float(low) <= float(value) <= float(high)
        assert n == "40"


COMMANDS = [
    line.partition("#")[0].strip() for line in EXAMPLES.splitlines() if line.startswith("rbk ") and "photos" not in line
]


def test_commands_and_linked_files_are_all_there():
    verbs = {command.split()[1] for command in COMMANDS} - {"--plugin"}
    assert verbs == {
        "list", "eval", "audit", "cross-check", "records", "board", "check", "images", "train",
        "diagnose", "reproduce", "doctor",
    }  # fmt: skip
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("*/README.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(c, marks=pytest.mark.slow) if c.split()[1] in ("images", "board") else c
        for c in COMMANDS
        if c.split()[1] == "list" or c.startswith(("rbk board plan", "rbk images draw"))
    ],
)
def test_a_command(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.full((48, 64, 3), 128, np.uint8)).save("photo.jpg")
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out


def _board(name):
    return json.loads((ROOT / "leaderboards" / name / "board.json").read_text("utf-8"))


def _points(answer, key="against"):
    """Return a difference as pages write it: that of the numbers in the table, +0.1 [−2.2, +2.5]."""
    compared = answer[key]
    difference = round(100 * answer["value"], 1) - round(100 * compared["value"], 1)
    numbers = (difference, *(100 * compared[end] for end in ("low", "high")))
    value, low, high = (f"{number:+.1f}".replace("-", "−") for number in numbers)
    return f"{value} [{low}, {high}]"


PLANNED = ("answer-cifar10/adversarial", "answer-cifar10/protocol", "answer-cifar10/tokens",
           "answer-cifar10/tokens-adversarial", "answer/autoattack")  # fmt: skip


@pytest.mark.parametrize("table", PLANNED)
def test_the_numbers_of_planned_answers_are_those_of_the_packs(table):
    answer = _board(table)["answers"][0]
    numbers = [_points(answer, key) for key in ("against", "control")]
    assert f"| {' | '.join(numbers)} |" in (ROOT / "docs" / "findings.md").read_text()


def test_the_table_of_the_readme_has_the_numbers_of_the_digits_board():
    """Every cell, and the ranks within these eight networks: what `rbk board report` prints of their records."""
    columns = {"clean": "Clean", "pgd20-linf-2_255": "PGD-20 2/255", "pgd20-linf-8_255": "PGD-20 8/255"}
    with (ROOT / "leaderboards" / "digits" / "board.csv").open() as lines:
        cells = {(row["model"], row["column"]): row for row in csv.DictReader(lines)}
    head, *rows = re.search(r"```text\n(.*?)```", README, re.DOTALL)[1].splitlines()
    assert re.findall(r"(\S+) · n = 364", head) == list(columns)
    assert len(rows) == 8
    for row in rows:
        model = row.split()[1]
        there = [[cells[model, column][key] for key in ("value", "low", "high")] for column in columns.values()]
        shown = ["{:.1f} [{:.1f}, {:.1f}]".format(*(100 * float(value) for value in cell)) for cell in there]
        assert re.split(r"\s{2,}", row)[2:] == shown
    assert set(re.search(r"-m (\S+)", README)[1].split(",")) == {row.split()[1] for row in rows}


def test_the_numbers_of_the_league_are_those_of_the_pack():
    small, few = _board("league-digits/table-1")["answers"][:2]
    trained_small, trained_few, cosine = _board("league-digits/table-2")["answers"]
    findings = (ROOT / "docs" / "findings.md").read_text()
    for answer in (small, few, trained_small, trained_few, cosine):
        assert _points(answer) in findings
    for answer in (few, trained_small, trained_few):
        assert _points(answer, "control") in findings
    assert _points(trained_few) in README


def _stand(model, protocol):
    """Names of the images that a network with another attention plugged in keeps."""
    folder = ROOT / "leaderboards" / "league-plugin-cifar10" / "records"
    [file] = folder.glob(f"cifar10_vit_{model}__*__{protocol}*.outcomes.csv.xz")
    with lzma.open(file, "rt") as lines:
        return {row["sample"] for row in csv.DictReader(lines) if not row["broken_by"]}


def test_the_numbers_of_plugged_in_attention_are_those_of_the_records():
    findings = " ".join((ROOT / "docs" / "findings.md").read_text().split())
    for model, said in (
        ("softmax", "keeps {} under AutoAttack fast"), ("pro_l1_restored", "keeps {} with L1"),
        ("pro_mcp_restored", "and {} with MCP"), ("pro_huber_restored", "With Huber it keeps {}"),
        ("neutreno", "NeuTRENO keeps {}"), ("twicing", "twicing {}"), ("temperature2", "Temperature 2 keeps {}"),
    ):  # fmt: skip
        assert said.format(len(_stand(model, "autoattack"))) in findings
    for more, less, protocol in (
        ("pro_l1_released", "pro_l1_restored", "autoattack"), ("temperature2", "softmax", "autoattack"),
        ("pro_mcp_released", "pro_mcp_restored", "pgd20-linf-1_255"),
    ):  # fmt: skip
        more, less = (_stand(model, protocol) for model in (more, less))
        assert f"(p = {stats.binomtest(len(more - less), len(more ^ less)).pvalue:.2f}" in findings


def test_the_numbers_of_the_protocols_are_those_of_the_board():
    method = (ROOT / "docs" / "method.md").read_text()
    [row] = [row for row in _board("teo2024/table-2")["rows"] if row["model"] == "SymViT"]
    kept = {cell["column"]: f"{100 * cell['value']:.1f}" for cell in row["cells"] if cell}
    for name, attack in (("PGD-20", "PGD"), ("FGSM", "FGSM"), ("SPSA", "SPSA"), ("SLD", "SLD"), ("C&W", "C&W")):
        literal, corrected = (kept[f"{attack} top-1, {kind}"] for kind in ("literal", "corrected"))
        assert f"| {name} | {literal} | {corrected} |" in method
    for page in (README, (ROOT / "docs" / "findings.md").read_text()):
        assert f"{kept['PGD top-1, literal']} %" in page
        assert f"{kept['PGD top-1, corrected']} %" in page
