"""ADE20K: indoor and outdoor scenes, 150 classes, as released for scene parsing.

Folders: `images/` and `annotations/`, each with `training/` and `validation/`.

Zhou et al. (2017), "Scene Parsing through ADE20K Dataset", CVPR; Zhou et al. (2019), "Semantic Understanding of Scenes
through the ADE20K Dataset", IJCV, arXiv:1608.05442. Annotations contain 1 to 150, and 0 for pixels of no class, which
are ignored: class k here is id k + 1. Class names are the first name of each row of `objectInfo150.txt` if that file
exists, else "id 1" to "id 150".
"""

from collections import Counter
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca.data.io.labelling import Labelling
from robustbench_kpca.data.io.place import stored_folder
from robustbench_kpca.data.io.scene_files import Place, SceneFiles
from robustbench_kpca.data.request import Request
from robustbench_kpca.types import IGNORE

CLASSES = 150
SPLITS = {"val": ("validation", 2_000), "train": ("training", 20_210)}
NAMES = "objectInfo150.txt"


def load(request: Request) -> SceneFiles:
    """Read `val` (the default; 2,000 scenes as released) or `train` (20,210)."""
    split = request.split_of("ade20k", list(SPLITS))
    part, expected = SPLITS[split]
    root = stored_folder("ade20k", request.folder)
    labelling = Labelling(
        class_names=_names(root / NAMES), ids={0: IGNORE} | {label + 1: label for label in range(CLASSES)}
    )
    place = Place(root / "images" / part, root / "annotations" / part)
    return SceneFiles(place, labelling, name="ade20k", split=split, expected=expected)


def _names(table: Path) -> tuple[str, ...]:
    """Read the class names from a table: a header, then columns index, ratio, two counts, names (main name first)."""
    if not table.is_file():
        return tuple(f"id {label + 1}" for label in range(CLASSES))
    try:
        rows = [line.split("\t") for line in table.read_text("utf-8").splitlines()[1:] if line.strip()]
        full = {int(row[0]): row[4].strip() for row in rows}
    except (OSError, ValueError, IndexError) as error:
        raise BadInputError(
            f"{table} cannot be used ({reason_of(error)})", expected="5 columns with tabs between them"
        ) from None
    if sorted(full) != list(range(1, CLASSES + 1)):
        raise BadInputError(f"{table} lists {len(full)} classes", expected="classes 1 to 150")
    first = [full[key].partition(",")[0] for key in sorted(full)]
    count = Counter(first)
    return tuple(name if count[name] == 1 else full[key] for key, name in zip(sorted(full), first, strict=True))
