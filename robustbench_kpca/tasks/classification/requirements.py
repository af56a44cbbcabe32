"""Check that images and protocol are compatible; otherwise the evaluation would give meaningless numbers."""

import numpy as np

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.cells import CellSamples
from robustbench_kpca.data.imagenet_classes import imagenet_classes
from robustbench_kpca.data.request import View
from robustbench_kpca.data.samples import Resized, Samples, to_pixels
from robustbench_kpca.protocols.scenario import Corruption, Ood, Scenario, Shift
from robustbench_kpca.tasks.prepare import require_form

IMAGENET_CLASSES = 1000
IMAGENET_C_SIDE = 224
PROFILES = {
    "imagenet-c": "imagenet_c",
    "imagenet-c-bar": "imagenet_c_bar",
    "imagenet-3dcc": "imagenet_3dcc",
    "cifar10-c": "cifar_c",
}
"""The parameter set of each published set of corrupted images."""


def first_cell(samples: Samples, protocol: Scenario | None) -> Samples:
    """Return the images of the first cell of the protocol; stored corruptions may have no clean images."""
    if isinstance(samples, CellSamples) and isinstance(protocol, Corruption):
        return samples.cell(*protocol.cells[0])
    return samples


def at_size(samples: Samples, view: View | None, *, requested: bool) -> Samples:
    """Return pictures as a view has them. Pictures that all have its size already are shown as they are.

    Args:
        samples: pictures of a folder or of a collection are resized by any view, those in memory only on request.
        view: None where the model states none and the user named no size or crop.
        requested: whether the user named size or crop.

    Raises:
        BadInputError: pictures of several sizes without a view; pictures in memory of another size without a request;
            a size for stored corruptions, or for samples that are no pictures.
    """
    if requested and (not samples.form.box or isinstance(samples, CellSamples)):
        what = "stored corruptions" if samples.form.box else samples.form.name
        raise BadInputError(f"a size or crop for data '{samples.name}', which are {what}", fix="leave it out")
    if requested and view is not None and samples.resized not in ("", view.of_published.how):
        raise BadInputError(
            f"a size or crop for data '{samples.name}', which are resized: {samples.resized}",
            fix="load them without a view",
        )
    if not samples.form.box or samples.resized or isinstance(samples, CellSamples):
        return samples
    if view is None:
        _require_one_size(samples)
        return samples
    fits = samples.size(0) == (view.size, view.size) and (not samples.raw or _odd(samples) is None)
    if fits and (not requested or view.crop is None):
        return samples
    if not requested and not samples.raw:
        height, width = samples.size(0)
        raise BadInputError(
            f"data '{samples.name}' has pictures of {width} x {height}, but the model takes {view.size} x {view.size}",
            fix=f"add --size {view.size} to resize them ({view.interpolation}), or --size {width} to show them as "
            "they are",
        )
    return Resized(samples, view)


def _require_one_size(samples: Samples) -> None:
    other_size = _odd(samples) if samples.raw else None
    if other_size is not None:
        sizes = " and ".join("{1} x {0}".format(*samples.size(index)) for index in (0, other_size))
        raise BadInputError(
            f"data '{samples.name}' has pictures of several sizes ({sizes}), and the model states none",
            fix="add --size N to resize each to N x N, or --size N --crop 0.875 to resize its short side to N / 0.875 "
            "and crop the centre",
        )


def _odd(samples: Samples) -> int | None:
    """Return the index of the first picture of another size than that of picture 0."""
    first = samples.size(0)
    return next((index for index in range(1, len(samples)) if samples.size(index) != first), None)


def require_images(samples: Samples, protocol: Scenario) -> None:
    """Refuse images on which a protocol cannot be evaluated.

    Raises:
        BadInputError: stored corruptions with a protocol that generates them, or the reverse; stored images with other
            parameters than the protocol; missing cells; labels outside the protocol's classes; two data sets where the
            protocol needs one, or the reverse; a protocol with windows; a protocol for samples of another form.
    """
    require_form(samples, protocol)
    if getattr(protocol, "inference", None) is not None:
        raise BadInputError(
            f"protocol '{protocol.title}' has an [inference] table for data '{samples.name}'",
            expected="no windows: these images have one label each and are evaluated as a whole",
            fix="choose a protocol without [inference]",
        )
    if isinstance(samples, CellSamples) != (isinstance(protocol, Corruption) and protocol.mode == "stored"):
        kind = "stored corruptions" if isinstance(samples, CellSamples) else "images"
        raise BadInputError(
            f"data '{samples.name}' ({kind}) cannot be used with the protocol '{protocol.title}'",
            expected="stored corruptions such as imagenet-c:FOLDER for mode = 'stored', and clean images otherwise",
        )
    if isinstance(protocol, Ood) != samples.is_pair:
        raise BadInputError(
            f"data '{samples.name}' cannot be used with the protocol '{protocol.title}'",
            expected="two data sets for out-of-distribution detection, and one otherwise",
            fix="give --data KNOWN --against UNKNOWN",
        )
    if isinstance(protocol, Corruption):
        _require_one_grid(protocol)
        _require_making(samples, protocol)
        _require_alexnets_size(samples, protocol)
    if isinstance(protocol, Shift | Ood):
        _require_classes(samples, protocol)


def classes_of(protocol: Shift | Ood) -> list[int] | None:
    """Return the classes that the protocol selects; None for all."""
    return None if protocol.classes == "all" else imagenet_classes(protocol.classes)


def _require_one_grid(protocol: Corruption) -> None:
    if protocol.grid:
        raise BadInputError(
            f"protocol '{protocol.title}' has corruptions of different severities ([[grid]] tables)",
            expected="for images with one label each, `corruptions` that all have the same `severities`",
        )


def _require_making(samples: Samples, protocol: Corruption) -> None:
    """Refuse stored images with other parameters than the protocol, and missing cells."""
    if not isinstance(samples, CellSamples):
        return
    profile = PROFILES[samples.name]
    if (protocol.profile, protocol.storage, protocol.frost) != (profile, "published", "published"):
        raise BadInputError(
            f"data '{samples.name}' was made with other parameters than the protocol '{protocol.title}'",
            expected=f"profile = '{profile}', storage = 'published' and frost = 'published'",
            fix="use the protocol of this data set",
        )
    for name, severity in protocol.cells:
        samples.cell(name, severity)


def _require_alexnets_size(samples: Samples, protocol: Corruption) -> None:
    if protocol.reference != "alexnet":
        return
    height, width = np.shape(to_pixels(first_cell(samples, protocol).image(0)))[:2]
    if (height, width) != (IMAGENET_C_SIDE, IMAGENET_C_SIDE):
        raise BadInputError(
            f"images of {width} x {height} with reference = 'alexnet'",
            expected="224 x 224, because AlexNet's errors are for ImageNet-C",
            fix="set reference = 'none'",
        )


def _require_classes(samples: Samples, protocol: Shift | Ood) -> None:
    labels = (samples.known_part or samples).labels
    foreign = sorted(set(labels) - set(classes_of(protocol) or labels))
    if foreign:
        raise BadInputError(
            f"data '{samples.name}' has label {foreign[0]}, which is not one of the classes '{protocol.classes}'",
            fix=f"give images of these classes (imagenet:FOLDER --split {protocol.classes}), or set classes = 'all'",
        )
