"""Find the folder of a stored data set: given by the user, or the sub-folder of its name in RBK_DATA."""

import os
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError

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
