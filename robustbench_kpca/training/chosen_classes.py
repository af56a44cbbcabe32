"""Train on some of the classes of a folder: lists of classes, and whether the folder has them."""

from pathlib import Path
from typing import Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.imagenet_classes import imagenet_classes, imagenet_wnids
from robustbench_kpca.data.sets import imagenet_100


def class_numbers(chosen: str | None) -> dict[str, int]:
    """Return name -> number of the classes of a list, in sorted order; empty for no list.

    Args:
        chosen: `imagenet-100`, or a text file with one name a line.

    Raises:
        BadInputError: there is no such list, or it has a name twice or fewer than two names.
    """
    if chosen is None:
        return {}
    if chosen == imagenet_100.NAME:
        wnids = imagenet_wnids()
        names = [wnids[index] for index in imagenet_classes(chosen)]
    else:
        try:
            lines = Path(chosen).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            raise BadInputError(
                f"no list of classes at '{chosen}'", expected=f"{imagenet_100.NAME}, or a text file of folder names"
            ) from None
        names = [line.strip() for line in lines if line.strip()]
    if len(names) < 2 or len(set(names)) < len(names):
        raise BadInputError(f"list of classes '{chosen}'", expected="at least 2 names, each once")
    return {name: number for number, name in enumerate(sorted(names))}


def require_classes(reader: Any, chosen: dict[str, int]) -> None:
    """Refuse a folder, or a tar file, without images of some chosen class."""
    targets = getattr(reader, "targets", None)
    numbers = {int(number) for number in (targets if targets is not None else (image[1] for image in reader.samples))}
    missing = [name for name, number in chosen.items() if number not in numbers]
    if missing:
        raise BadInputError(
            f"{reader.root} has no images of {len(missing)} of the {len(chosen)} chosen "
            f"classes ({', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''})",
            fix="add these folders, or change images.classes",
        )
