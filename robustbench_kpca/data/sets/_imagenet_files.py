"""Read images of ImageNet classes: one folder per class, labels are ImageNet-1K indices."""

import re
from pathlib import Path
from typing import NamedTuple

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.imagenet_classes import COLLECTIONS, imagenet_classes, imagenet_wnids, robustbench_validation
from robustbench_kpca.data.io.reading import image_files, left_out, listing, no_images, sub_folders

VALIDATION = re.compile(r"ILSVRC2012_val_\d{8}")


class Classes(NamedTuple):
    """The images in class folders, with their ImageNet-1K indices, and what of the folders was left out."""

    files: list[str]
    labels: list[int]
    notes: tuple[str, ...]


def read_classes(root: Path, name: str, *, complete: bool = False) -> Classes:
    """Return the images in class folders.

    The folder names are indices for ImageNet-V2 and WordNet ids for other sets.

    Raises:
        BadInputError: an unknown folder, or (with `complete`) a class of the set without images; no file whose name
            ends like that of an image.
    """
    names = [str(i) for i in range(1000)] if name == "imagenet-v2" else list(imagenet_wnids())
    wanted = [names[i] for i in imagenet_classes(name if name in COLLECTIONS else "all")]
    index = {folder: number for number, folder in enumerate(names)}
    listings = {folder: listing(root / folder) for folder in sub_folders(root) if folder in index}
    listed = {folder: files for folder, (files, _) in listings.items()}
    foreign = sorted(set(sub_folders(root)) - set(wanted))
    missing = [folder for folder in wanted if not listed.get(folder)] if complete else []
    if foreign or missing or not any(listed.values()):
        faults = [f"{len(missing)} classes are missing ({_some(missing)})"] if missing else []
        faults += [f"folder {folder} contains {no_images(root / folder)}" for folder in missing if folder in listed][:1]
        faults += [f"{len(foreign)} folders are not classes of it ({_some(foreign)})"] if foreign else []
        faults = faults if image_files(root) else [f"it contains {no_images(root)}"]
        raise BadInputError(
            f"{root} is not {name}: {' and '.join(faults) or 'it has no images in class folders'}",
            expected=f"the {len(wanted)} class folders of {name}, such as {wanted[0]}",
        )
    files = [f"{folder}/{file}" for folder in wanted for file in listed.get(folder, ())]
    labels = [index[folder] for folder in wanted for _ in listed.get(folder, ())]
    only_images = [root / folder for folder, (_, only) in listings.items() if only]
    return Classes(files, labels, left_out(root, but=only_images))


def require_validation(files: list[str], labels: list[int], root: Path, name: str) -> None:
    """Refuse images that are not from the validation set, or whose label contradicts RobustBench's list of 5,000."""
    wnid_of, wnids = robustbench_validation(), imagenet_wnids()
    for file, label in zip(files, labels, strict=True):
        match = VALIDATION.match(file.rpartition("/")[2])
        if match is None:
            raise BadInputError(
                f"{root} is not {name}: '{file}' is not a validation image",
                expected="names like ILSVRC2012_val_00000293",
            )
        wnid = wnid_of.get(match[0])
        if wnid not in (None, wnids[label]):
            raise BadInputError(
                f"{root} gives '{file}' the class {wnids[label]}, but its class is {wnid}",
                expected="ImageNet-1K indices from 0, classes in the order of their WordNet ids",
            )


def require_training(files: list[str], root: Path) -> None:
    """Refuse images that are not named after the class that their folder says, as training images are."""
    for file in files:
        folder, _, name = file.rpartition("/")
        if not (folder and name.startswith(f"{folder}_")):
            raise BadInputError(
                f"{root} is not imagenet's train: '{file}' is not a training image",
                expected="names like n01440764/n01440764_10026.JPEG",
            )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
