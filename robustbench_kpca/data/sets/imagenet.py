"""ImageNet: 50,000 validation images of 1,000 classes, in class folders or in one folder with a file of labels.

Russakovsky et al. (2015), arXiv:1409.0575. The splits `imagenet-a`, `imagenet-r`, `imagenet-o` and `imagenet-100` are
the images of the classes of those collections. Labels of the official test images are not public, so `test` means
`val`. Training images, `train`, are in class folders.
"""

import re
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca.data.imagenet_classes import COLLECTIONS, imagenet_classes, imagenet_wnids
from robustbench_kpca.data.io.folder import ImageFiles
from robustbench_kpca.data.io.place import stored_folder
from robustbench_kpca.data.io.reading import image_files, left_out, no_images, sub_folders
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.sets._imagenet_files import Classes, read_classes, require_training, require_validation

SPLITS = ("val", "test", "train", *COLLECTIONS[1:])
LABEL_FILES = ("val.txt", "labels.txt", "ilsvrc2012_val_labels.txt", "LOC_val_solution.csv", "labels.csv")
_ROW = re.compile(r"\s*(?:\S*/)?(ILSVRC2012_val_\d{8})(?:\.\w+)?[\s,]+(n\d{8}|\d{1,4})(?=[\s,]|$)")
_PER_CLASS, _TRAINING = 50, 1_281_167


def load(request: Request) -> ImageFiles:
    """Load `val` (the default), only its images of the classes of a collection, or `train`.

    The images are in the folder itself or in its sub-folder `val` or `train`. Fewer images than published are accepted:
    compare `len` with `expected`.
    """
    root = stored_folder("imagenet", request.folder)
    split = request.split_of("imagenet", SPLITS)
    split = "val" if split == "test" else split
    part = "train" if split == "train" else "val"
    other = next((name for name in ("train", "val") if name != part and (root / name).is_dir()), "")
    if other and not (root / part).is_dir():
        raise BadInputError(f"{root} has a folder {other} and no folder {part}", fix="give a folder with both")
    root = root / part if (root / part).is_dir() else root
    files, labels, notes = read_classes(root, "imagenet") if sub_folders(root) else _flat(root)
    if split == "train":
        require_training(files, root)
    else:
        require_validation(files, labels, root, "imagenet")
    wanted = set(imagenet_classes("all" if split in ("val", "train") else split))
    chosen = [i for i, label in enumerate(labels) if label in wanted]
    files, labels = [files[i] for i in chosen], [labels[i] for i in chosen]
    wnids = imagenet_wnids()
    ids = [f"{wnids[label]}/{file.rpartition('/')[2]}" for file, label in zip(files, labels, strict=True)]
    samples = ImageFiles(root, files, labels, 1000, name="imagenet", split=split, view=request.view, ids=ids)
    samples.expected = _TRAINING if split == "train" else _PER_CLASS * len(wanted)
    samples.notes = notes
    return samples


def _flat(root: Path) -> Classes:
    """Return the images of one folder, and their labels from a file in this folder or in its parent."""
    files = image_files(root)
    tables = [folder / name for folder in (root, root.parent) for name in LABEL_FILES if (folder / name).is_file()]
    if not files or not tables:
        content = "images but no file of their labels" if files else no_images(root)
        raise BadInputError(
            f"{root} is not imagenet: it contains {content}",
            expected=f"class folders, or images with one of {', '.join(LABEL_FILES)} (rows: name, label from 0 or "
            "WordNet id)",
        )
    labels = _read_labels(tables[0])
    unlabelled = next((file for file in files if Path(file).stem not in labels), None)
    if unlabelled is not None:
        raise BadInputError(f"{tables[0]} has no label for '{unlabelled}'", fix="complete it, or remove the image")
    return Classes(files, [labels[Path(file).stem] for file in files], left_out(root))


def _read_labels(table: Path) -> dict[str, int]:
    wnids = {wnid: number for number, wnid in enumerate(imagenet_wnids())}
    labels: dict[str, int] = {}
    try:
        lines = table.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"{table} cannot be read ({reason_of(error)})", expected="a text of file names and labels"
        ) from None
    for number, line in enumerate(lines, 1):
        match = _ROW.match(line)
        if match is None and number > 1 and line.strip():
            raise BadInputError(f"line {number} of {table} is '{line[:60]}'", expected="a file name and its label")
        if match is not None:
            label = wnids.get(match[2], -1) if match[2].startswith("n") else int(match[2])
            if not 0 <= label < len(wnids):
                raise BadInputError(
                    f"line {number} of {table} has the label {match[2]}", expected="an index from 0 to 999, or a wnid"
                )
            if labels.setdefault(match[1], label) != label:
                raise BadInputError(f"line {number} of {table} gives {match[1]} another label", expected="one an image")
    return labels
