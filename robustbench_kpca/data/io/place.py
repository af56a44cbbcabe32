"""Folders of images: where that of a stored data set is, how one is named in records, and the order of names in it."""

import importlib.util
import os
import re
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data import DATASETS

ENVIRONMENT_VARIABLE = "RBK_DATA"


def stored_folder(name: str, folder: str) -> Path:
    """Return the folder of the set `name`: `folder` or, if that is empty, the sub-folder `name` of RBK_DATA."""
    base = os.environ.get(ENVIRONMENT_VARIABLE)
    if not folder and not base:
        raise BadInputError(
            f"{name} is not included in the package",
            fix=f"give {name}:FOLDER, or set {ENVIRONMENT_VARIABLE} to the folder that contains {name}",
        )
    root = Path(folder) if folder else Path(base or "") / name
    if not root.is_dir():
        raise BadInputError(f"there is no folder {root} for '{name}'", fix=f"give {name}:FOLDER")
    return root


def scikit_learns(file: str) -> Path:
    """Return a file of scikit-learn's package of data sets, found without its import, which takes a second."""
    spec = importlib.util.find_spec("sklearn")
    path = Path(str(spec.origin if spec else "sklearn")).parent / "datasets" / file
    if not path.is_file():
        raise BadInputError(f"scikit-learn's data are not at {path}", fix="pip install scikit-learn")
    return path


def natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Return a key to sort names by, in any case of letters; equal ones are sorted as text."""
    parts = re.split(r"(\d+)", name.lower())
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts], name


def plain_name(folder: Path) -> str:
    """Return the name of a folder with a hyphen for all but letters, digits, dots and hyphens."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", folder.name)


def own_name(folder: Path) -> str:
    """Return the name of a folder for records of its images.

    Boards find records by the name of their data. So no folder may be called `digits`, nor as a JPEG copy of a set
    or a pair of two sets is: `digits-jpeg`, `digits-against-photos`.
    """
    name = folder.name
    data_set = name.casefold().partition("-against-")[0].removesuffix("-jpeg")
    if data_set in DATASETS.names():
        raise BadInputError(
            f"images of folder {folder} would be recorded as '{name}', as those of the data set {data_set} are",
            fix="rename the folder, or ask for the set itself (see: rbk list data)",
        )
    return name
