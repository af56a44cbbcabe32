"""Data and protocol fit each other, or nothing is measured: what is seen on the wrong images looks like a result."""

import numpy as np

from robustbench_kpca.corruptions import Cell
from robustbench_kpca.data.cells import CellSamples
from robustbench_kpca.data.imagenet_classes import imagenet_classes
from robustbench_kpca.data.samples import Samples, to_pixels
from robustbench_kpca.data.scenes import Scenes
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.inference.loader import corrupted
from robustbench_kpca.protocols.scenario import Attack, Corruption, Ood, Plain, Segmentation, Shift

IMAGENET_C_SIDE = 224
PROFILES = {"imagenet-c": "imagenet_c", "imagenet-c-bar": "imagenet_c_bar", "cifar10-c": "cifar_c"}
"""The parameter set behind each published set of corrupted images."""


def first_shown(samples: Samples, scenario: Plain | Attack) -> Samples:
    """Return the images of the first cell that is shown: of stored corruptions there may be no others."""
    if isinstance(samples, CellSamples) and isinstance(scenario, Corruption):
        return samples.cell(*scenario.cells[0])
    return samples


def require_data(samples: Samples, scenario: Plain | Attack) -> None:
    """Refuse data that a scenario cannot be measured on.

    Raises:
        BadInputError: stored pictures asked of data that has none, or the other way round, or pictures of another
            making; cells that are not there; labels outside the classes asked for; a pair where one set is wanted, or
            the other way round.

    """
    if isinstance(samples, CellSamples) != (isinstance(scenario, Corruption) and scenario.mode == "stored"):
        kind = "stored corruptions" if isinstance(samples, CellSamples) else "images"
        raise BadInputError(
            f"data '{samples.name}' ({kind}) for the protocol '{scenario.title}'",
            expected="imagenet-c:FOLDER or the like for mode = 'stored', and plain images otherwise",
        )
    if isinstance(scenario, Ood) != samples.is_pair:
        raise BadInputError(
            f"data '{samples.name}' for the protocol '{scenario.title}'",
            expected="two data sets for out-of-distribution detection, and one otherwise",
            fix="give --data KNOWN --against UNKNOWN",
        )
    if isinstance(scenario, Corruption):
        _require_making(samples, scenario)
        _require_alexnets_size(samples, scenario)
    if isinstance(scenario, Shift | Ood):
        _require_classes(samples, scenario)


def classes_of(scenario: Shift | Ood) -> list[int] | None:
    """Return the classes that are asked for, None for all."""
    return None if scenario.classes == "all" else imagenet_classes(scenario.classes)


def try_cells(data: Samples | Scenes, scenario: Corruption | Segmentation, seed: int, frost: str) -> None:
    """Make one picture of each cell, so that what cannot be made is found out before anything is measured.

    Of scenes it is the smallest, which leaves corruptions the least to work on.
    """
    cells = [cell for place in scenario.cells if (cell := cell_of(scenario, place, seed, frost)) is not None]
    if not cells:
        return
    index = min(range(len(data)), key=lambda at: sorted(data.size(at))) if isinstance(data, Scenes) else 0
    image = to_pixels(data.image(index))
    for cell in cells:
        corrupted(image, cell, data.ids[index])


def cell_of(scenario: Corruption | Segmentation, place: tuple[str, int], seed: int, frost: str) -> Cell | None:
    """Return how pictures of one cell are generated; None for the images as they are."""
    name, severity = place
    if severity == 0:
        return None
    assert scenario.mode != "stored"
    return Cell(
        corruption=name, severity=severity, profile=scenario.profile, mode=scenario.mode, seed=seed, frost=frost
    )


def _require_making(samples: Samples, scenario: Corruption) -> None:
    """Refuse stored pictures that were made in another way than the protocol says, and cells that are not there."""
    if not isinstance(samples, CellSamples):
        return
    asked = (scenario.profile, scenario.storage, scenario.frost)
    there = samples.made or (PROFILES[samples.name], "published", "published")
    if asked != there:
        profile, storage, frost = there
        raise BadInputError(
            f"data '{samples.name}' for the protocol '{scenario.title}'",
            expected=f"profile = '{profile}', storage = '{storage}' and frost = '{frost}', as these pictures were made",
            fix="choose that set's protocol (for pictures by rbk corrupt: one that generates, with --set mode=stored)",
        )
    for name, severity in scenario.cells:
        samples.cell(name, severity)


def _require_alexnets_size(samples: Samples, scenario: Corruption) -> None:
    if scenario.reference != "alexnet":
        return
    height, width = np.shape(to_pixels(first_shown(samples, scenario).image(0)))[:2]
    if (height, width) != (IMAGENET_C_SIDE, IMAGENET_C_SIDE):
        raise BadInputError(
            f"images of {width} x {height} with reference = 'alexnet'",
            expected="224 x 224: AlexNet's errors are of ImageNet-C",
            fix="set reference = 'none'",
        )


def _require_classes(samples: Samples, scenario: Shift | Ood) -> None:
    known = samples.labels if samples.known_classes is None else samples.known_classes
    odd = sorted(set(known) - set(classes_of(scenario) or known))
    if odd:
        raise BadInputError(
            f"data '{samples.name}' has label {odd[0]}, which is none of the classes '{scenario.classes}'",
            fix=f"give images of those classes (imagenet:FOLDER --split {scenario.classes}), or choose classes = 'all'",
        )
