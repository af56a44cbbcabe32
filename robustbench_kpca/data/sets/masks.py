"""Any folder with `images/`, `masks/` (or `annotations/`) and a `classes.csv` that declares the values of masks.

The two folders contain files with the same names (except for the suffix), at any depth, or one folder per split
(`train`, `val`, `test`). Masks are PNG or BMP with ids (one channel). `classes.csv` has the columns `id` and `name`;
pixels of rows named `ignore` are excluded from all counts.
"""

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.io.folder import PARTS
from robustbench_kpca.data.io.labelling import read_table
from robustbench_kpca.data.io.place import own_name, stored_folder
from robustbench_kpca.data.io.reading import sub_folders
from robustbench_kpca.data.io.scene_files import Place, SceneFiles
from robustbench_kpca.data.request import Request

TABLE = "classes.csv"
DEFAULT = "val"


def load(request: Request) -> SceneFiles:
    """Read a split (default: `val`). A folder without splits is read as a whole, with the split name `all`."""
    if not request.folder:
        raise BadInputError("the data set 'masks' needs a folder", fix="give masks:FOLDER or, to train, --data FOLDER")
    root = stored_folder("masks", request.folder)
    labelling = read_table(root / TABLE)
    masks = next((root / name for name in ("masks", "annotations") if (root / name).is_dir()), root / "masks")
    place, part = _part(Place(root / "images", masks), request.split or DEFAULT)
    name = own_name(root.resolve())
    return SceneFiles(place, labelling, name=name, split=part)


def _part(whole: Place, split: str) -> tuple[Place, str]:
    parts = sorted(PARTS & set(sub_folders(whole.images))) if whole.images.is_dir() else []
    if split in parts:
        return Place(whole.images / split, whole.masks / split), split
    if parts or split not in (DEFAULT, "all"):
        splits = ", ".join(parts) or "none; omit the split"
        raise BadInputError(f"{whole.images} has no split '{split}'", fix=f"known: {splits}")
    return whole, "all"
