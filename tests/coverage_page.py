"""Read leaderboards/coverage.md and say what is wrong: `faults_of` plans the commands of a row, and runs none."""

import re
import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import timm
import typer

from robustbench_kpca._core.errors import BadInputError, BenchmarkError
from robustbench_kpca._core.strict import parse_assignments
from robustbench_kpca.cli.main import app
from robustbench_kpca.corruptions import ALL
from robustbench_kpca.data import DATASETS
from robustbench_kpca.models import ARCHITECTURES, bundled
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.presets import board_path
from robustbench_kpca.study.diagnostics import CLAIMS, CORRECTED, PROCEDURES
from robustbench_kpca.study.diagnostics.saritas2025 import STUDY
from robustbench_kpca.study.reproduction.pack import Item, Open, load_pack
from robustbench_kpca.study.reproduction.roles import Roles, ScaleName
from robustbench_kpca.study.reproduction.steps import plan
from robustbench_kpca.training.recipe import load_recipe

_RBK: Any = typer.main.get_command(app)
ROOT = Path(__file__).parents[1]
STATES = ("yes", "in part", "no")
COUNTS = ("rows", *STATES, "compared", "made")
HEADER = ["what", "in this project", "command", "runs", "compared", "made"]
NONE = "–"
_TEST = re.compile(r"tests/[\w/]+\.py::test_\w+")
_SPAN = re.compile(r"`([^`]+)`")
_FILE = re.compile(r"([\w.-]+/)*[\w.-]+\.(py|toml|md|txt)(::\w+)?|([\w.-]+/)+")
_OWN = re.compile(r"[A-Z_]+(\.[a-z]+)?")
"""What a reader fills in, such as FOLDER or FILE."""


class _Planned(Exception):  # noqa: N818
    """Raised where an evaluation, which is planned, would begin."""


@dataclass(frozen=True)
class Row:
    paper: str
    what: str
    where: str
    command: str
    runs: str
    compared: str
    made: str

    @property
    def counted(self) -> tuple[str, ...]:
        """Return the columns of the head that count it; what is made in part is not counted as made."""
        compared = ("compared",) if self.compared != NONE else ()
        made = ("made",) if self.made != NONE and not self.made.startswith("in part") else ()
        return ("rows", self.runs.partition(":")[0], *compared, *made)

    @property
    def commands(self) -> list[str]:
        return [span for span in _SPAN.findall(self.command) if span.startswith(("rbk ", "python "))]

    @property
    def items(self) -> list[tuple[str, str]]:
        words = [shlex.split(command) for command in self.commands]
        return [(w[2], item) for w in words if w[:2] == ["rbk", "reproduce"] for item in _items(_params(*w[1:]))]


def rows(text: str) -> list[Row]:
    table, paper = [], ""
    for line in text.splitlines():
        if line.startswith("## "):
            paper = line[3:].strip()
        elif paper and line.startswith("|") and not set(line) <= set("|- "):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) != len(HEADER):
                raise AssertionError(f"{len(cells)} cells, not {len(HEADER)}: {line}")
            if cells != HEADER:
                table.append(Row(paper, *cells))
    return table


def wrong_counts(text: str) -> list[str]:
    """Return a line if the numbers in the head are not those of the rows."""
    there = rows(text)
    stated = {}
    for line in text.partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(COUNTS) + 1 and cells[-1].isdecimal():
            stated[cells[0]] = [int(cell) for cell in cells[1:]]
    counted = {}
    for paper in [*dict.fromkeys(row.paper for row in there), "all"]:
        amounts = Counter(what for row in there if paper in ("all", row.paper) for what in row.counted)
        counted[paper] = [amounts[what] for what in COUNTS]
    return [] if stated == counted else [f"the head counts {stated}, the rows are {counted}"]


def faults_of(row: Row) -> list[str]:
    state, _, why = row.runs.partition(":")
    remarks = [] if state in STATES else [f"state '{state}' is none of {', '.join(STATES)}"]
    if (state == "yes") == bool(why.strip()):
        remarks.append(f"state '{row.runs}': a reason stands behind all states but `yes`")
    if "not built" in why:
        remarks.append(f"state '{row.runs}': that it is not built is no reason")
    files = [span for span in _SPAN.findall(row.where) if _FILE.fullmatch(span)]
    if state != "no" and not (files and row.commands):
        remarks.append("neither file nor command")
    remarks += _faults_of_evidence(row)
    remarks += [
        f"there is no {span}" for cell in (row.where, row.runs) for span in _SPAN.findall(cell) if not _is_there(span)
    ]
    wrong = [fault for command in row.commands if (fault := _fault_of(command))]
    if not wrong and state == "yes" and any(isinstance(_pack(pack)[1][item], Open) for pack, item in row.items):
        remarks.append("it runs, but the pack says why it cannot be made")
    if state == "yes" and any(re.match(r"rbk train .*FOLDER", command) for command in row.commands):
        remarks.append("it runs, but trainings were not rehearsed at the true size")
    return [f"{row.what}: {fault}" for fault in remarks + wrong]


def _faults_of_evidence(row: Row) -> list[str]:
    """Say what is wrong with the tests that compare a row, and with the file that has its number."""
    remarks = []
    for what, cell, form in (("compared", row.compared, _TEST), ("made", row.made, _FILE)):
        spans = _SPAN.findall(cell)
        if cell != NONE and not spans:
            remarks.append(f"{what} '{cell}' names nothing")
        remarks += [f"{what}: there is no {span}" for span in spans if not form.fullmatch(span) or not _is_there(span)]
    return remarks


@cache
def _fault_of(command: str) -> str:
    try:
        _check(shlex.split(command))
    except (BenchmarkError, AssertionError) as error:
        return f"{command}: {error}"
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error of click
            return f"{command}: {error.format_message()}"
        raise
    return ""


def _is_there(span: str) -> bool:
    """Tell whether a file exists, below the root or the package, with the name behind `::`; true of other words."""
    if not _FILE.fullmatch(span):
        return True
    path, _, name = span.partition("::")
    place = next((folder / path for folder in (ROOT, ROOT / "robustbench_kpca") if (folder / path).exists()), None)
    if place is None or not name:
        return place is not None
    defined = rf'^\s*(?:(?:async )?def|class) {name}\b|^{name}\b|name="{name}"|^\s*"{name}":'
    return re.search(defined, place.read_text("utf-8"), re.MULTILINE) is not None


def _check(words: list[str]) -> None:
    """Plan one command; every name in it must exist."""
    if words[0] != "rbk":
        for word in words[1:]:
            assert _is_there(word), f"there is no {word}"
        return
    params, known = _params(*words[1:]), _NAMES
    if words[1] == "diagnose":
        claims = CLAIMS if params["protocol"] == CORRECTED else STUDY
        known = known | {"protocol": lambda name: _known(name, PROCEDURES, "procedure"), "claim": claims.get}
    for key, value in params.items():
        for part in value if isinstance(value, list | tuple) else [value]:
            if part is not None and key in known:
                known[key](part)
    if words[1] == "eval":
        with patch("robustbench_kpca.cli.evaluate.reporting", side_effect=_Planned):
            try:
                _RBK.main(words[1:], prog_name="rbk", standalone_mode=False)
            except _Planned:
                return
        raise AssertionError("nothing was planned")
    if words[1] == "train":
        load_recipe(params["recipe"], parse_assignments(params["set_"] or []))
    if words[1] == "reproduce":
        scale: ScaleName = "paper" if params["scale"] == "paper" or params["data"] else "embedded"
        items, planned = _pack(params["pack"])[1], _planned_items(params["pack"], scale)
        for item in _items(params):
            assert item in items, f"there is no item {item}"
            assert item in planned or isinstance(items[item], Open), f"{item} plans nothing"


@cache
def _params(*words: str) -> dict[str, Any]:
    """Parse a command as `rbk` would, without running it."""
    command, rest = _RBK, list(words)
    context = command.make_context("rbk", [*rest])
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, [*rest], parent=context)
    params: dict[str, Any] = context.params
    return params


def _items(params: dict[str, Any]) -> list[str]:
    wanted = [*params["item"], *(f"table-{n}" for n in params["table"]), *(f"figure-{n}" for n in params["figure"])]
    return wanted or [*_pack(params["pack"])[1]]


@cache
def _pack(name: str) -> tuple[Any, dict[str, Item]]:
    return load_pack(name)[1:]


@cache
def _planned_items(name: str, scale: ScaleName) -> set[str]:
    """Return the items that have steps. No data are loaded here, but in tests/unit/study/test_packs.py."""
    content, items = _pack(name)
    no_data = patch("robustbench_kpca.study.reproduction.reader.load_data", side_effect=BadInputError("not loaded"))
    with no_data, TemporaryDirectory() as out:
        steps = plan(items, Roles(name, content, scale, Path(out), {}, {}))
    return {item for planned in steps for item in planned.items}


def _known(name: str, known: Any, what: str) -> None:
    assert name in known or _OWN.fullmatch(name), f"there is no {what} named '{name}'"


def _model(name: str) -> None:
    if name.startswith("timm:"):
        plain, _, tag = name.removeprefix("timm:").partition(".")
        assert timm.is_model(plain), f"timm has no model '{plain}'"
        assert not tag or name.removeprefix("timm:") in timm.list_pretrained(f"{plain}.*"), f"timm has no '{tag}'"
    else:
        _known(name, {*ARCHITECTURES, *bundled()}, "model")


_NAMES: dict[str, Callable[[Any], object]] = {
    "model": _model,
    "protocol": lambda names: [load_scenario(name) for name in names.split(",")],
    "data": lambda name: _known(str(name).partition(":")[0], DATASETS.names(), "data set"),
    "against": lambda name: _known(name.partition(":")[0], DATASETS.names(), "data set"),
    "corruption": lambda name: _known(name, [member for kind in ALL for member in kind.names()], "corruption"),
    "board": lambda name: board_path(name),
    "pack": lambda name: _pack(name),
}
