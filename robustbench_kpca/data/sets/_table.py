"""Load the sets of `data/shifted_imagenet.py`: labels are ImageNet-1K indices, folders are as published."""

from collections.abc import Callable
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.io.folder import ImageFiles
from robustbench_kpca.data.io.place import stored_folder
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.sets._cell_folders import CellFolders
from robustbench_kpca.data.sets._imagenet_files import VALIDATION, read_classes
from robustbench_kpca.data.shifted_imagenet import SHIFTED, Shifted


def _corrupted(name: str, published: Shifted) -> Callable[[Request], CellFolders]:
    def load(request: Request) -> CellFolders:
        """Load the only split, `val`; see `CellFolders`."""
        return CellFolders(request, name, published.corruptions)

    return load


def _collection(name: str, published: Shifted) -> Callable[[Request], ImageFiles]:
    def load(request: Request) -> ImageFiles:
        """Load the only split, `test`, with one folder an ImageNet class, of which none may be missing.

        Fewer images per class than published are accepted: compare `len` with `expected`.
        """
        root = stored_folder(name, request.folder)
        split = request.split_of(name, ("test",))
        files, labels, notes = read_classes(root, name, complete=True)
        validation_image = next((file for file in files if VALIDATION.match(Path(file).name)), None)
        if validation_image is not None:
            raise BadInputError(
                f"{root} is not {name}: '{validation_image}' is an ImageNet validation image", fix="give another folder"
            )
        samples = ImageFiles(root, files, labels, published.classes, name=name, split=split, view=request.view)
        samples.expected, samples.notes = published.images, notes
        return samples

    return load


load = {name: (_corrupted if row.corruptions else _collection)(name, row) for name, row in SHIFTED.items()}
