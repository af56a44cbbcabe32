"""ImageNet's validation images and the collections that share its classes; labels are ImageNet-1K indices.

`imagenet`: Russakovsky et al. (2015), arXiv:1409.0575. `imagenet-a`, `imagenet-o`: Hendrycks et al. (2021),
arXiv:1907.07174. `imagenet-r`: Hendrycks et al. (2021), arXiv:2006.16241. `imagenet-v2`: Recht et al. (2019),
arXiv:1902.10811. `imagenet-sketch`: Wang et al. (2019), arXiv:1905.13549.
"""

import re
from pathlib import Path

from robustbench_kpca.data.io.classes import COLLECTIONS, imagenet_classes, imagenet_wnids, robustbench_validation
from robustbench_kpca.data.io.folder import BadImages, ImageFiles, View
from robustbench_kpca.data.io.reading import image_files, sub_folders
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.errors import BadInputError

COUNTS = {"imagenet-a": 7_500, "imagenet-r": 30_000, "imagenet-o": 2_000, "imagenet-v2": 10_000}
COUNTS |= {"imagenet-sketch": 50_889}
"""Images published, of the sets whose class folders must all be there."""
LABEL_FILES = ("val.txt", "labels.txt", "ilsvrc2012_val_labels.txt", "LOC_val_solution.csv", "labels.csv")
_VALIDATION = re.compile(r"ILSVRC2012_val_\d{8}")
_ROW = re.compile(r"\s*(?:\S*/)?(ILSVRC2012_val_\d{8})(?:\.\w+)?[\s,]+(n\d{8}|\d+)\b")
_PER_CLASS = 50


def load_collection(root: Path, name: str, view: View, bad_images: BadImages = "fail") -> Samples:
    """Load ImageNet-A, -R, -O, -V2 or -Sketch: one folder a class, exactly the classes published.

    The images of ImageNet-O are of none of the classes, whatever their folder: they have no labels.
    """
    files, labels = read_classes(root, name, complete=True)
    odd = next((file for file in files if _VALIDATION.match(Path(file).name)), None)
    if odd is not None:
        raise BadInputError(f"{root} is not {name}: '{odd}' is an ImageNet validation image", fix="give another folder")
    samples = ImageFiles(
        root, files, labels, 0 if name == "imagenet-o" else 1000, name=name, split="test", view=view,
        bad_images=bad_images,
    )  # fmt: skip
    samples.expected = COUNTS[name]
    return samples


def load_validation(root: Path, split: str, view: View, bad_images: BadImages = "fail") -> Samples:
    """Load the validation images, in class folders or flat beside a file of labels.

    Args:
        root: their folder, or one that holds it as `val`.
        split: `val`, or a collection of 200 classes: only images of those.
        view: how images are resized and cropped.
        bad_images: see `ImageFiles`.

    Raises:
        BadInputError: a folder that is no class, an image that is none of the validation images, labels that are not
            theirs.

    """
    if split not in ("val", *COLLECTIONS[1:]):
        raise BadInputError(f"imagenet has no split '{split}'", fix=f"known: val, {', '.join(COLLECTIONS[1:])}")
    root = root / "val" if (root / "val").is_dir() else root
    if sub_folders(root):
        files, labels = read_classes(root, "imagenet")
    else:
        files, labels = _flat(root)
    require_validation(files, labels, root, "imagenet")
    wanted = set(imagenet_classes("all" if split == "val" else split))
    kept = [i for i, label in enumerate(labels) if label in wanted]
    files, labels = [files[i] for i in kept], [labels[i] for i in kept]
    ids = [f"{imagenet_wnids()[label]}/{Path(file).name}" for file, label in zip(files, labels, strict=True)]
    samples = ImageFiles(
        root, files, labels, 1000, name="imagenet", split=split, view=view, ids=ids, bad_images=bad_images
    )
    samples.expected = _PER_CLASS * len(wanted)
    return samples


def read_classes(root: Path, name: str, *, complete: bool = False) -> tuple[list[str], list[int]]:
    """List the images of class folders and their ImageNet-1K indices.

    The folders of ImageNet-V2 are called by the index, those of other sets by the WordNet id.

    Raises:
        BadInputError: a foreign folder, or (with `complete`) a class of the set without images.

    """
    names = [str(i) for i in range(1000)] if name == "imagenet-v2" else list(imagenet_wnids())
    wanted = [names[i] for i in imagenet_classes(name if name in COLLECTIONS else "all")]
    index = {folder: number for number, folder in enumerate(names)}
    listed = {folder: image_files(root / folder) for folder in sub_folders(root) if folder in index}
    foreign = sorted(set(sub_folders(root)) - set(wanted))
    missing = [folder for folder in wanted if not listed.get(folder)] if complete else []
    if foreign or missing or not any(listed.values()):
        faults = [f"{len(missing)} classes are missing ({_some(missing)})"] if missing else []
        faults += [f"{len(foreign)} folders are foreign ({_some(foreign)})"] if foreign else []
        raise BadInputError(
            f"{root} is not {name}: {' and '.join(faults) or 'it has no images in class folders'}",
            expected=f"the {len(wanted)} class folders of {name}, such as {wanted[0]}",
        )
    pairs = [(f"{folder}/{file}", index[folder]) for folder in wanted for file in listed.get(folder, ())]
    return [file for file, _ in pairs], [label for _, label in pairs]


def require_validation(files: list[str], labels: list[int], root: Path, name: str) -> None:
    """Refuse images that are not of the validation set, or whose label contradicts RobustBench's list of 5,000."""
    known, wnids = robustbench_validation(), imagenet_wnids()
    for file, label in zip(files, labels, strict=True):
        match = _VALIDATION.match(Path(file).name)
        if match is None:
            raise BadInputError(
                f"{root} is not {name}: '{file}' is no validation image", expected="names like ILSVRC2012_val_00000293"
            )
        wnid = known.get(match[0])
        if wnid not in (None, wnids[label]):
            raise BadInputError(
                f"{root} gives '{file}' the class {wnids[label]}; it is of {wnid}",
                expected="ImageNet-1K indices from 0, classes in the order of their WordNet ids",
            )


def _flat(root: Path) -> tuple[list[str], list[int]]:
    """List images that lie in one folder, with the labels of a file beside them or one folder up."""
    files = image_files(root)
    tables = [folder / name for folder in (root, root.parent) for name in LABEL_FILES if (folder / name).is_file()]
    if not files or not tables:
        met = "no file of their labels" if files else "no images"
        raise BadInputError(
            f"{root} is not imagenet: it holds {met}",
            expected=f"class folders, or images beside one of {', '.join(LABEL_FILES)} (rows: name, label from 0 or "
            "WordNet id)",
        )
    known = _read_labels(tables[0])
    bare = next((file for file in files if Path(file).stem not in known), None)
    if bare is not None:
        raise BadInputError(f"{tables[0]} has no label for '{bare}'", fix="complete it, or remove the image")
    return files, [known[Path(file).stem] for file in files]


def _read_labels(table: Path) -> dict[str, int]:
    wnids = {wnid: number for number, wnid in enumerate(imagenet_wnids())}
    labels = {}
    try:
        lines = table.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{table} cannot be read ({error})", expected="a text of file names and labels") from None
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
            labels[match[1]] = label
    return labels


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
