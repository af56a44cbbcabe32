"""The name under which a folder of the user's is recorded: its last part, unless a set of the package has that name."""

import re
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data import DATASETS


def plain_name(folder: Path) -> str:
    """Return the name of a folder with a hyphen for all but letters, digits, dots and hyphens."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", folder.name)


def own_name(folder: Path) -> str:
    """Return the name of a folder, for records of what is in it.

    Boards find records by the name of their data. So no folder may be called `digits`, nor as a JPEG copy of a set
    or a pair of two sets is: `digits-jpeg`, `digits-against-photos`.
    """
    name = folder.name
    taken = name.casefold().partition("-against-")[0].removesuffix("-jpeg")
    if taken in DATASETS.names():
        raise BadInputError(
            f"images of folder {folder} would be recorded as '{name}', as those of the data set {taken} are",
            fix="rename the folder, or ask for the set itself (see: rbk list data)",
        )
    return name
