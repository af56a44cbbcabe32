"""`rbk list`: list what there is, such as models and protocols, or what this machine has."""

import json
from enum import StrEnum
from typing import Annotated, Any, Literal

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Json, Presets

_FOLDERS = "A data set that is not bundled is read from a folder: NAME:FOLDER, or NAME for the folder NAME in RBK_DATA."


class Shelf(StrEnum):
    """The kinds of things that can be listed."""

    models = "models"
    attacks = "attacks"
    corruptions = "corruptions"
    data = "data"
    protocols = "protocols"
    metrics = "metrics"
    boards = "boards"
    packs = "packs"
    recipes = "recipes"
    machine = "machine"


_FOUND: dict[Shelf, Literal["leaderboards", "packs"]] = {Shelf.boards: "leaderboards", Shelf.packs: "packs"}


def listing(
    what: Annotated[Shelf | None, typer.Argument(help="What to list; without it, what there is to list.")] = None,
    presets: Presets = None,  # noqa: ARG001 (set by its callback)
    json: Json = False,
) -> None:
    """List models, attacks, corruptions, data sets, protocols, metrics, boards, packs, recipes, or what is installed.

    `rbk list machine` shows versions, devices, free disk space, missing packages and how to install them.
    """
    rows = _shelves() if what is None else _rows(what)
    if json:
        _console.show_json(rows)
    elif rows:
        _console.show_table(_FOLDERS if what is Shelf.data else "", list(rows[0]), [list(row.values()) for row in rows])


def _shelves() -> list[dict[str, Any]]:
    """Count what there is; not what the machine has, which needs torch."""
    return [{"what": shelf.value, "entries": "" if shelf is Shelf.machine else len(_rows(shelf))} for shelf in Shelf]


def _rows(what: Shelf) -> list[dict[str, Any]]:
    if what is Shelf.models:
        return _models()
    if what is Shelf.machine:
        from robustbench_kpca.cli._machine import facts

        return facts()
    if what in (Shelf.protocols, Shelf.boards, Shelf.packs):
        from robustbench_kpca._core.strict import load_toml
        from robustbench_kpca.protocols import presets

        paths = presets.protocols() if what is Shelf.protocols else presets.find(_FOUND[what])
        return [{"name": name, "title": load_toml(path).get("title", "")} for name, path in paths.items()]
    if what is Shelf.recipes:
        from robustbench_kpca._core.strict import load_toml
        from robustbench_kpca.training import recipes

        return [{"name": name, "title": load_toml(path).get("title", "")} for name, path in recipes().items()]
    if what is Shelf.corruptions:
        from robustbench_kpca.corruptions import ALL

        return [{"name": name, "what": kind.summary(name)} for kind in ALL for name in kind.names()]
    family = _family(what)
    return [{"name": name, "what": family.summary(name)} for name in family.names()]


def _family(what: Shelf) -> Any:
    if what is Shelf.attacks:
        from robustbench_kpca.attacks import ATTACKS as FAMILY
    elif what is Shelf.data:
        from robustbench_kpca.data import DATASETS as FAMILY
    else:
        from robustbench_kpca.metrics import METRICS

        return METRICS
    return FAMILY


def _model(name: str, task: str, weights: str, scores: str = "", density: str = "", remark: str = "") -> dict[str, Any]:
    row = {"name": name, "task": task, "weights": weights, "held-out scores": scores}
    return row | {"density of S in each RPC block": density, "remark": remark}


def _models() -> list[dict[str, Any]]:
    from robustbench_kpca.models import ARCHITECTURES, bundled
    from robustbench_kpca.models.bundle import read_header
    from robustbench_kpca.models.families import is_stochastic, task_of
    from robustbench_kpca.tasks import task_named

    rows = []
    for name, path in bundled().items():
        header = read_header(path)
        density = ", ".join(f"{100 * share:.2g} %" for share in json.loads(header["density_of_S"]))
        task = task_named(task_of(json.loads(header["config"])["name"]))
        scores = task.describe("test", header) or task.describe("val", header)
        rows.append(_model(name, task.name, "bundled", scores, density))
    for name in ARCHITECTURES:
        if name not in bundled():
            remark = "stochastic: needs expectation over transformation" if is_stochastic(name) else ""
            rows.append(_model(name, task_of(name), "none", remark=remark))
    return rows
