"""`rbk list`: list what there is, such as models and protocols, or what this machine has."""

import json
import re
import shutil
import sys
from importlib import util
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from robustbench_kpca._core.errors import BadInputError, install_extra
from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Json

_FOLDERS = "A data set that is not bundled is read from a folder: NAME:FOLDER, or NAME for the folder NAME in RBK_DATA."
EXTRAS = {"reference": ("torchattacks", "pyautoattack", "foolbox", "imagecorruptions")}
NEEDED_GB = 1.0


Shelf = Literal[
    "models", "attacks", "corruptions", "data", "protocols", "metrics", "boards", "packs", "recipes", "machine"
]
_FOUND: dict[Shelf, Literal["leaderboards", "packs"]] = {"boards": "leaderboards", "packs": "packs"}


def listing(
    what: Annotated[Shelf | None, typer.Argument(help="What to list; without it, what there is to list.")] = None,
    name: Annotated[
        str | None, typer.Argument(help="A protocol, or a short file of one: it is printed with every field.")
    ] = None,
    json: Json = False,
) -> None:
    """List models, attacks, corruptions, data sets, protocols, metrics, boards, packs, recipes, or what is installed.

    `rbk list machine` shows versions, devices, free disk space, missing packages and how to install them.
    """
    if name is not None:
        _console.say(_whole(what, name))
        return
    rows = _shelves() if what is None else _rows(what)
    if json:
        _console.show_json(rows)
    elif rows:
        _console.show_table(_FOLDERS if what == "data" else "", list(rows[0]), [list(row.values()) for row in rows])


def _whole(what: Shelf | None, name: str) -> str:
    from robustbench_kpca.protocols.loading import as_toml, load_scenario, read_protocol

    if what != "protocols":
        raise BadInputError(f"rbk list {what} {name}", expected=f"rbk list protocols {name}, or rbk list {what}")
    load_scenario(name)
    return as_toml(read_protocol(name)[1]).rstrip()


def _shelves() -> list[dict[str, Any]]:
    """Count what there is; not what the machine has, which needs torch."""
    return [{"what": shelf, "entries": "" if shelf == "machine" else len(_rows(shelf))} for shelf in get_args(Shelf)]


def _rows(what: Shelf) -> list[dict[str, Any]]:
    if what == "models":
        return _models()
    if what == "machine":
        return facts()
    if what in ("protocols", "boards", "packs"):
        from robustbench_kpca._core.strict import load_toml
        from robustbench_kpca.protocols import presets

        paths = presets.protocols() if what == "protocols" else presets.find(_FOUND[what])
        return [{"name": name, "title": load_toml(path).get("title", "")} for name, path in paths.items()]
    if what == "recipes":
        from robustbench_kpca.training.schedules import recipes

        return [{"name": name, "title": recipe["title"]} for name, recipe in recipes().items()]
    if what == "corruptions":
        from robustbench_kpca.corruptions import ALL

        return [{"name": name, "what": kind.summary(name)} for kind in ALL for name in kind.names()]
    family = _family(what)
    return [{"name": name, "what": family.summary(name)} for name in family.names()]


def _family(what: Shelf) -> Any:
    if what == "attacks":
        from robustbench_kpca.attacks import ATTACKS as FAMILY
    elif what == "data":
        from robustbench_kpca.data import DATASETS as FAMILY
    else:
        from robustbench_kpca.metrics import METRICS

        return METRICS
    return FAMILY


def _model(name: str, task: str, weights: str, scores: str = "", remark: str = "") -> dict[str, Any]:
    return {"name": name, "task": task, "weights": weights, "held-out scores": scores, "remark": remark}


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
        remark = f"RPC blocks with {density} of S other than 0" if density else ""
        rows.append(_model(name, task.name, "bundled", scores, remark))
    for name in ARCHITECTURES:
        if name not in bundled():
            remark = "stochastic: needs expectation over transformation" if is_stochastic(name) else ""
            rows.append(_model(name, task_of(name), "none", remark=remark))
    return rows


def facts() -> list[dict[str, str]]:
    """Return each part of the environment, what was found, and what to do where it is missing."""
    from robustbench_kpca.protocols import presets

    rows: list[tuple[str, str, str]] = [("python", sys.version.split()[0], "")]
    for name in _requirements():
        version = _version(name)
        rows.append((name, version or "missing", "" if version else f"pip install {name}"))
    rows += _torch() if util.find_spec("torch") else []
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    rows.append(("disk free here", f"{free:.1f} GB", "" if free > NEEDED_GB else "free some space"))
    rows.append(("presets", ", ".join(map(str, presets.roots())), ""))
    for extra, packages in EXTRAS.items():
        installed = [f"{name} {_version(name)}" for name in packages if _version(name)]
        fix = "" if len(installed) == len(packages) else f"optional: {install_extra(extra)}"
        rows.append((f"extra '{extra}'", ", ".join(installed) or "not installed", fix))
    return [{"what": what, "found": found_here, "fix": fix} for what, found_here, fix in rows]


def _torch() -> list[tuple[str, str, str]]:
    import torch

    from robustbench_kpca._engine.inference.environment import processor, revision
    from robustbench_kpca.models.bundle import bundled

    cuda = torch.cuda.is_available()
    return [
        ("revision", revision() or "installed package", ""),
        ("processor", f"{processor()}, {torch.get_num_threads()} threads", ""),
        ("cuda", torch.cuda.get_device_name() if cuda else "none", "" if cuda else "not needed"),
        ("bundled models", str(len(bundled())), "" if bundled() else "reinstall robustbench-kpca"),
    ]


def _requirements() -> list[str]:
    """Return the names of the required packages, without optional extras."""
    from importlib import metadata

    lines = metadata.requires("robustbench-kpca") or []
    return [re.split(r"[^A-Za-z0-9_.-]", line)[0] for line in lines if "extra ==" not in line]


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
