"""Sets that lie on disk as they were published, by name: `NAME:FOLDER`, or `NAME` for the one in RBK_DATA."""

from robustbench_kpca.data.io.cell_folders import KNOWN, CellFolders
from robustbench_kpca.data.io.cells import CellSamples
from robustbench_kpca.data.io.cifar10_c import Cifar10C
from robustbench_kpca.data.io.folder import BadImages, View
from robustbench_kpca.data.io.imagenet import COUNTS, load_collection, load_validation
from robustbench_kpca.data.io.place import stored_folder
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.errors import BadInputError

__all__ = ["STORED", "CellSamples", "load_stored"]

STORED = ("imagenet", *COUNTS, *KNOWN, "cifar10-c")
"""Names of all of them."""
_WHOLE = "test"  # what `load_data` asks for where nobody named a split


def load_stored(name: str, folder: str, split: str, view: View, bad_images: BadImages = "fail") -> Samples:
    """Load the stored set `name` from `folder`, or, where that is empty, from the folder of that name in RBK_DATA.

    Every set checks that it is the one it claims to be. Fewer images than were published are accepted: compare
    `len` with `expected`. Only `imagenet` has splits.

    Raises:
        BadInputError: no such folder, or it is not that set.

    """
    root = stored_folder(name, folder)
    if name == "imagenet":
        return load_validation(root, "val" if split == _WHOLE else split, view, bad_images)
    if split != _WHOLE:
        raise BadInputError(f"{name} has no split '{split}'", fix="leave --split out")
    if name in KNOWN:
        return CellFolders(root, name, view, bad_images)
    if name in COUNTS:
        return load_collection(root, name, view, bad_images)
    return Cifar10C(root)
