"""Find the TOML files of protocols and boards: first in the user's folder, then in this installation."""

import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from robustbench_kpca._core.errors import BadInputError, UnknownNameError
from robustbench_kpca._core.files import read_file
from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca._core.strict import load_toml

Shelf = Literal["attacks", "corruptions", "leaderboards", "packs"]
_FOLDERS = {"leaderboards": "board.toml", "packs": "pack.toml"}
ENVIRONMENT_VARIABLE = "RBK_PRESETS"
_EPS = re.compile(r"(.+-(?:linf|l2|l1|words)-)((?=[\d.]*[1-9])\d+(?:\.\d+)?)(_\d+)?")
"""The name of an attack at an eps: `pgd20-linf-`, `8`, `_255`."""
_PACKAGE = Path(__file__).parents[1]


def roots() -> list[Path]:
    """Return the folders to search, in order: `$RBK_PRESETS` (set by `--presets`), then the bundled presets."""
    folder = os.environ.get(ENVIRONMENT_VARIABLE)
    if folder and not Path(folder).is_dir():
        raise BadInputError(f"{ENVIRONMENT_VARIABLE} = {folder} is not a folder", fix="correct or unset it")
    shipped = _PACKAGE / "_presets"
    return [*([Path(folder)] if folder else []), shipped if shipped.is_dir() else _PACKAGE.parent]


def find(shelf: Shelf) -> dict[str, Path]:
    """Return name -> path of every preset of a kind; of two with the same name, the one in the earlier root is used."""
    paths: dict[str, Path] = {}
    for root in reversed(roots()):
        if shelf in _FOLDERS:
            found = [
                path for depth in ("*", "*/*") for path in (root / "leaderboards").glob(f"{depth}/{_FOLDERS[shelf]}")
            ]
            paths |= {name_on_shelf(path): path for path in sorted(found)}
        else:
            paths |= {path.stem: path for path in sorted((root / shelf).glob("*.toml"))}
    return dict(sorted(paths.items()))


def name_on_shelf(path: Path) -> str:
    """Return the name of a `board.toml` or `pack.toml`: its folder, or GROUP/FOLDER below a folder of a group."""
    *_, group, folder, _ = path.absolute().parts
    return folder if group == "leaderboards" else f"{group}/{folder}"


def protocols() -> dict[str, Path]:
    """Return name -> path of every protocol, from the folders `attacks` and `corruptions`."""
    return dict(sorted((find("attacks") | find("corruptions")).items()))


def has_field(key: str) -> bool:
    """Tell whether a protocol of the package or of the user has a field of this name."""
    field = re.compile(rf"^{re.escape(key)} *=", re.MULTILINE)
    return any(field.search(read_file(path).decode("utf-8", "replace")) for path in protocols().values())


def load_protocol(name: str | Path) -> tuple[str, dict[str, Any]]:
    """Return the name and the TOML content of a protocol, given its name, or a `Path` or the path of a `.toml` file.

    Raises:
        UnknownNameError: there is no such preset; the message suggests the closest name.
        BadInputError: the file cannot be read; something else is given.
    """
    if not isinstance(name, str | Path):
        raise BadInputError(f"protocol {str(name)[:40]}", expected="the name of a protocol, or a TOML file")
    if isinstance(name, Path) or name.endswith(".toml"):
        return Path(name).stem, load_toml(Path(name))
    places = [root / shelf / f"{name}.toml" for shelf in ("corruptions", "attacks") for root in roots()]
    path = next((path for path in places if path.stem == name and path.is_file()), None)
    if path is None:
        names = protocols()
        raise _at_another_eps(name, names) or unknown_name("protocol", name, names, usual="-linf-8_255")
    return name, load_toml(path)


def _at_another_eps(name: str, names: Iterable[str]) -> UnknownNameError | None:
    """Return the error for `pgd20-linf-3_255` where `pgd20-linf-4_255` is nearest: its eps can be set."""
    typed = _EPS.fullmatch(name)
    budgets = {
        other: float(match[2])
        for other in names
        if typed and (match := _EPS.fullmatch(other)) and match.group(1, 3) == typed.group(1, 3)
    }
    if typed is None or not budgets:
        return None
    wanted = float(typed[2])
    nearest = min(budgets, key=lambda other: abs(math.log(budgets[other] / wanted)))
    eps = typed[2] + (typed[3] or "").replace("_", "/")
    return UnknownNameError(
        f"there is no protocol named '{name}'", fix=f"give '{nearest}' with eps = {eps}: -p {nearest} --set eps={eps}"
    )


def board_path(name: str) -> Path:
    """Return the path of `board.toml`, given the name of a board, its folder or the file itself."""
    return _folder_path("leaderboards", name, "board")


def board_folder(name: str) -> Path:
    """Return where a board's new records and pages belong: its folder, or one of its name in the current folder.

    The second where the board came with the installed package, whose folder is not to be written to.
    """
    folder = board_path(name).parent
    return Path(folder.name) if (_PACKAGE / "_presets") in folder.absolute().parents else folder


def pack_path(name: str) -> Path:
    """Return the path of `pack.toml`, given the name of a pack, its folder or the file itself."""
    return _folder_path("packs", name, "pack")


def _folder_path(shelf: Shelf, name: str, kind: str) -> Path:
    path, file = Path(name), _FOLDERS[shelf]
    if path.name == file and path.is_file():
        return path
    if (path / file).is_file():
        return path / file
    folders = find(shelf)
    if name not in folders:
        raise unknown_name(kind, name, folders)
    return folders[name]
