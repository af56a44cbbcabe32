"""Verbs and options of `rbk` do not grow unseen, and `evaluate` names every keyword to a type checker."""

import tomllib
from dataclasses import fields
from typing import get_type_hints

import typer

from robustbench_kpca.cli.main import app
from robustbench_kpca.evaluation.api import Several
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.protocols.presets import protocols

TABLES = ("stage", "grid", "inference")
FIXED = {"title", "citations", "kind", "attack", "labels"}
"""What no keyword replaces; `labels` is a parameter of `evaluate`."""


def commands(command, name="rbk"):
    for own, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {own}")
    if not hasattr(command, "commands"):
        yield name, [param for param in command.params if param.param_type_name == "option" and param.name != "help"]


def test_verbs_and_options_are_counted():
    """`pytest -s tests/architecture/test_keywords.py` prints them."""
    root = typer.main.get_command(app)
    found = dict(commands(root))
    common = [param for param in root.params if param.name in ("version", "plugin", "presets")]
    options = len(common) + sum(map(len, found.values()))
    print(f"{len(found)} verbs, {options} options, {len(found['rbk eval'])} of rbk eval")
    assert len(found) <= 22
    assert options <= 194
    assert len(found["rbk eval"]) <= 33


def replaceable(content):
    tables = [table for name in TABLES for table in (content.get(name) or ())]
    tables = [table for table in tables if isinstance(table, dict)] + [content.get("inference", {})]
    return {name for table in (content, *tables) for name in table} - {*TABLES, *FIXED}


def test_every_option_and_every_field_of_a_protocol_is_a_keyword_of_evaluate():
    known = set(get_type_hints(Several))
    assert {field.name for field in fields(RunOptions)} <= known
    files = [tomllib.loads(path.read_text()) for path in protocols().values()]
    assert len(files) > 100
    assert {name for content in files for name in replaceable(content)} - known == set()
