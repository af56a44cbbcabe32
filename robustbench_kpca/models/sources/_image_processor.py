"""Read the rule of a Hugging Face image processor: how it resizes, crops and normalises a picture.

Every processor has a way of its own, so the rule is compared with what the processor itself makes of one picture.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.request import View

LARGEST = 0.01
"""Mean difference, in pixel values of [0, 1], by which our picture may differ from the processor's: resampling on
tensors and on images differs by less than this, another crop by more."""


def view_of(processor: Any, name: str) -> View:
    """Return how pictures are resized and cropped.

    Raises:
        BadInputError: in a way that has no `View`.

    """
    view = _view(processor, name)
    picture = _picture()
    mean, std = normalisation_of(processor, name)
    made = np.asarray(processor(Pillow.fromarray(picture), return_tensors="np")["pixel_values"][0], np.float64)
    theirs = made * np.reshape(std, (-1, 1, 1)) + np.reshape(mean, (-1, 1, 1))
    ours = np.asarray(view.apply(Pillow.fromarray(picture)), np.float64).transpose(2, 0, 1) / 255
    if theirs.shape != ours.shape or float(np.abs(theirs - ours).mean()) > LARGEST:
        raise _unknown(processor, name)
    return view


def normalisation_of(processor: Any, name: str) -> tuple[list[float], list[float]]:
    """Return mean and std for images in [0, 1]; a factor other than 1/255 is part of them.

    Raises:
        BadInputError: pixels are not rescaled.

    """
    get = _getter(processor)
    if not get("do_rescale", True):
        raise _unknown(processor, name)
    scale = 255 * float(get("rescale_factor", 1 / 255))
    mean, std = (get("image_mean"), get("image_std")) if get("do_normalize", True) else (0.0, 1.0)
    offset = 1.0 if get("rescale_offset", default=False) else 0.0
    means, stds = (list(np.broadcast_to(np.asarray(values, float), 3)) for values in (mean, std))
    return [float(value + offset) / scale for value in means], [float(value) / scale for value in stds]


def _view(processor: Any, name: str) -> View:
    get = _getter(processor)
    size = dict(get("size") or {})
    crop = dict(get("crop_size") or {}) if get("do_center_crop", default=False) else {}
    interpolation = Pillow.Resampling(int(get("resample", Pillow.Resampling.BILINEAR))).name.lower()
    if not get("do_resize", True) or len({*size.values()} | {*crop.values()}) > 2:
        raise _unknown(processor, name)
    side = next(iter(size.values()), 0)
    cropped = next(iter(crop.values()), side)
    if "shortest_edge" in size and crop:
        return View.between(cropped, side, interpolation, "transformers")
    if "shortest_edge" in size and get("crop_pct") is not None and side < 384:  # ConvNeXt's processor
        return View.between(side, int(side / get("crop_pct")), interpolation, "transformers")
    if crop and cropped != side:
        raise _unknown(processor, name)
    return View(side, 1.0, interpolation, squash=True)


def _getter(processor: Any) -> Any:
    def get(name: str, default: Any = None) -> Any:
        value = getattr(processor, name, None)
        return default if value is None else value

    return get


def _picture() -> NDArray[np.uint8]:
    """Return a smooth picture, 320 x 288, whose parts all differ, so that a wrong crop shows."""
    rows, columns = np.mgrid[0:288, 0:320] / 320
    planes = (np.sin(7 * rows + 3 * columns), np.cos(9 * columns - 2 * rows), np.sin(11 * rows * columns))
    return np.stack([np.rint(127.5 + 127.5 * plane) for plane in planes], -1).astype(np.uint8)


def _unknown(processor: Any, name: str) -> BadInputError:
    return BadInputError(
        f"the image processor of 'hf:{name}' ({type(processor).__name__}) prepares pictures in a way that is not "
        "supported",
        expected="one that resizes, crops the centre, divides by 255 and normalises",
        fix="give a factory file.py:FUNCTION that returns the model, normalised inside",
    )
