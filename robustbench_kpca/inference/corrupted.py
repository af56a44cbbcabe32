"""Pictures are corrupted as a protocol says, each by its own random numbers, before they are shown to a model."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.corruptions import Cell, corrupt_one
from robustbench_kpca.corruptions.shared.storage import store
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.protocols.scenario import Corruption, Scenario

Pixels = NDArray[np.uint8]
GENERATED = "generated"


def cell_of(protocol: Corruption, place: tuple[str, int], seed: int, frost: str) -> Cell | None:
    """Return how pictures of one (corruption, severity) are generated; None for the images as they are.

    `frost` is what `frost_of` returns.
    """
    name, severity = place
    if severity == 0:
        return None
    assert protocol.mode != "stored"
    return Cell(
        corruption=name, severity=severity, profile=protocol.profile, mode=protocol.mode, seed=seed, frost=frost
    )


def corrupted(image: Pixels, cell: Cell | None, sample: str, storage: str = "none") -> Pixels:
    """Corrupt one image (unless `cell` is None), and send it through a JPEG file where `storage` says so.

    Raises:
        BadInputError: it cannot be corrupted like this; the message names the sample.

    """
    if cell is None:
        return image
    try:
        image = corrupt_one(image, cell, sample)
    except BadInputError as error:
        raise BadInputError(f"image '{sample}': {error}") from None
    return store(image) if storage == "jpeg-q85" else image


def frost_of(protocol: Scenario, folder: Path | str | None) -> str:
    """Return where frost pictures come from: "generated", or the folder of the original ones.

    Raises:
        BadInputError: the protocol asks for the original ones and there is no folder; or there is a folder, and the
            protocol does not use it.

    """
    if not isinstance(protocol, Corruption) or protocol.frost != "original":
        if folder is not None:
            raise BadInputError(
                f"a folder of frost pictures ({folder}) for the protocol '{protocol.title}'",
                fix="set frost = 'original', or leave the folder out",
            )
        return GENERATED
    if folder is None and "frost" in protocol.names:
        raise BadInputError("frost = 'original' without a folder of the pictures", fix="give --frost FOLDER")
    return str(folder)
