"""Where a stored set lies: in the folder that the user gives, or in the folder of its name in RBK_DATA."""

import os
from pathlib import Path

from robustbench_kpca.errors import BadInputError

ENVIRONMENT_VARIABLE = "RBK_DATA"


def stored_folder(name: str, folder: str) -> Path:
    """Return the folder of the set `name`: `folder`, or, where that is empty, the one of its name in RBK_DATA.

    Raises:
        BadInputError: there is none.

    """
    base = os.environ.get(ENVIRONMENT_VARIABLE)
    if not folder and not base:
        raise BadInputError(
            f"{name} is not shipped with the package",
            fix=f"give {name}:FOLDER, or set {ENVIRONMENT_VARIABLE} to the folder that holds it as {name}",
        )
    root = Path(folder) if folder else Path(base or "") / name
    if not root.is_dir():
        raise BadInputError(f"there is no folder {root} for '{name}'", fix=f"give {name}:FOLDER")
    return root
