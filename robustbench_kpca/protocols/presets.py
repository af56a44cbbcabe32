"""Where the TOML lives: the user's own folder first, then the checkout's, then what the wheel carries."""

import os
from pathlib import Path
from typing import Any, Literal

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.registry import unknown_name
from robustbench_kpca.strict import load_toml

Shelf = Literal["attacks", "corruptions", "leaderboards"]
ENVIRONMENT_VARIABLE = "RBK_PRESETS"
_PACKAGE = Path(__file__).parents[1]


def roots() -> list[Path]:
    """Folders searched, in order: `$RBK_PRESETS` (set by `--presets`), then this installation's own presets."""
    own = os.environ.get(ENVIRONMENT_VARIABLE)
    if own and not Path(own).is_dir():
        raise BadInputError(f"{ENVIRONMENT_VARIABLE} = {own} is no folder", fix="correct or unset it")
    shipped = _PACKAGE / "_presets"
    return [*([Path(own)] if own else []), shipped if shipped.is_dir() else _PACKAGE.parent]


def find(shelf: Shelf) -> dict[str, Path]:
    """Name -> path of every preset on a shelf; an earlier root hides a later one's of the same name."""
    found: dict[str, Path] = {}
    for root in reversed(roots()):
        if shelf == "leaderboards":
            found |= {path.parent.name: path for path in sorted((root / shelf).glob("*/board.toml"))}
        else:
            found |= {path.stem: path for path in sorted((root / shelf).glob("*.toml"))}
    return dict(sorted(found.items()))


def protocols() -> dict[str, Path]:
    """Name -> path of every protocol: the attacks and the corruptions, as evaluated."""
    return dict(sorted((find("attacks") | find("corruptions")).items()))


def load_protocol(name: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the TOML of a protocol given by name or by the path of a `.toml` file.

    Raises:
        UnknownNameError: no such preset; the message suggests the closest name.

    """
    name = str(name)
    if name.endswith(".toml"):
        return Path(name).stem, load_toml(Path(name))
    known = protocols()
    if name not in known:
        raise unknown_name("protocol", name, known, "(see: rbk list protocols)")
    return name, load_toml(known[name])


def board_path(name: str) -> Path:
    """Path of a board's `board.toml`, given the board's name, its folder or the file itself."""
    path = Path(name)
    if path.name == "board.toml" and path.is_file():
        return path
    if (path / "board.toml").is_file():
        return path / "board.toml"
    known = find("leaderboards")
    if name not in known:
        raise unknown_name("board", name, known, "(see: rbk list boards)")
    return known[name]
