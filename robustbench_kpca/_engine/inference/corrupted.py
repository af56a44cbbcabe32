"""Corrupt images as a protocol specifies; the random numbers depend on seed, corruption and sample id only."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.corruptions import Cell, corrupt_one
from robustbench_kpca.corruptions.shared.storage import store
from robustbench_kpca.protocols.scenario import Corruption, Scenario

GENERATED = "generated"


def cell_of(protocol: Corruption, place: tuple[str, int], seed: int, frost: str) -> Cell | None:
    """Return how images of one (corruption, severity) are generated; None for severity 0, the unchanged images.

    `frost` is what `frost_of` returns.
    """
    name, severity = place
    if severity == 0:
        return None
    assert protocol.mode != "stored"
    return Cell(
        corruption=name, severity=severity, profile=protocol.profile, mode=protocol.mode, seed=seed, frost=frost
    )


def corrupted(image: NDArray[Any], cell: Cell | None, sample: str, storage: str = "none") -> NDArray[Any]:
    """Corrupt one image, signal or sequence (unless `cell` is None).

    With `storage` = "jpeg-q85", an image is encoded and decoded as JPEG afterwards.

    Raises:
        BadInputError: the corruption cannot be applied to this image; the message names the sample.
    """
    if cell is None:
        return image
    try:
        image = corrupt_one(image, cell, sample)
    except BadInputError as error:
        raise BadInputError(f"sample '{sample}': {error}") from None
    return store(image) if storage == "jpeg-q85" else image


def frost_of(protocol: Scenario, folder: Path | str | None) -> str:
    """Return where frost images come from: "generated", or the folder of the original ones.

    Raises:
        BadInputError: the protocol needs the original frost images and no folder is given; or a folder is given that
            the protocol does not use.
    """
    if not isinstance(protocol, Corruption) or protocol.frost != "original" or "frost" not in protocol.names:
        if folder is not None:
            raise BadInputError(
                f"the protocol '{protocol.title}' does not use the folder of frost images ({folder})",
                fix="set frost = 'original' with the corruption 'frost', or leave out the folder",
            )
        return GENERATED
    if folder is None:
        raise BadInputError(
            "frost = 'original' needs the folder of the original frost images", fix="give --frost FOLDER"
        )
    return str(folder)
