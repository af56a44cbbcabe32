"""`hf:OWNER/NAME`, or `hf:FOLDER`: an image classifier of transformers.

The model comes from a folder made by `save_pretrained`, from the local cache of the Hugging Face hub, or else from the
hub. The image processor says how pictures are resized and normalised. No code of a repository is ever run.

Every image processor has a way of its own, so the rule that is read is compared with what the processor itself makes of
one picture.
"""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca.data.request import View
from robustbench_kpca.models.hub import silent_hub
from robustbench_kpca.models.source import describe, library, normalise_inside
from robustbench_kpca.models.weights_file import only_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONS = ("revision", "attn_implementation")
LARGEST = 0.01
"""Mean difference, in pixel values of [0, 1], by which our picture may differ from the processor's: resampling on
tensors and on images differs by less than this, another crop by more."""


class Unwrapped(nn.Module):
    """A model of transformers that returns its logits alone."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, classes)."""
        logits: Tensor = self.net(pixel_values=x).logits
        return logits

    def own_state(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of the wrapped model under the names that they have here."""
        return {name if name.startswith("net.") else f"net.{name}": value for name, value in state.items()}


def build(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """Return a model as `sources` says."""
    unknown = next((key for key in options if key not in OPTIONS), None)
    if unknown is not None:
        raise BadInputError(f"'model.{unknown}' of hf:{name} cannot be set", expected=f"one of {', '.join(OPTIONS)}")
    library("huggingface_hub", f"hf:{name}", "transformers")
    transformers = library("transformers", f"hf:{name}", "transformers")
    if not Path(name).is_dir() and name.count("/") != 1:
        raise BadInputError(f"there is no folder '{name}'", expected="hf:OWNER/NAME of the hub, or hf:FOLDER")
    how = {"trust_remote_code": False, **{key: options[key] for key in options if key == "revision"}}
    try:
        with _quiet(transformers):
            config = transformers.AutoConfig.from_pretrained(name, **how)
            model = _load(transformers, name, config, pretrained, options | how)
            processor = transformers.AutoImageProcessor.from_pretrained(name, **how)
    except BadInputError:
        raise
    except Exception as error:  # noqa: BLE001 (the hub and the library fail in many ways)
        raise BadInputError(
            f"model 'hf:{name}' cannot be loaded ({reason_of(error)})",
            expected="config.json, model.safetensors and preprocessor_config.json, of a model that is part of "
            "transformers (code from a repository is not run)",
            fix="check the name and the network, or give a folder",
        ) from None
    mean, std = normalisation_of(processor, name)
    labels: dict[int, str] = config.id2label
    names = [labels[index] for index in sorted(labels)]
    named = not any(label.startswith("LABEL_") for label in names)  # the library's names where the authors gave none
    return describe(normalise_inside(model, mean, std), view_of(processor, name), names if named else None)


def _load(transformers: Any, name: str, config: Any, pretrained: bool, how: dict[str, Any]) -> Unwrapped:
    """Build the model in single precision, whatever the precision of the file."""
    made_for = " ".join(config.architectures or ["ForImageClassification"])
    if "ForImageClassification" not in made_for:
        raise BadInputError(f"model 'hf:{name}' is a {made_for}", expected="a model ForImageClassification")
    auto = transformers.AutoModelForImageClassification
    if not pretrained:
        return Unwrapped(auto.from_config(config, dtype=torch.float32))
    net, report = auto.from_pretrained(name, dtype=torch.float32, output_loading_info=True, **how)
    missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if missing:
        raise BadInputError(
            f"the weights of 'hf:{name}' lack {len(missing)} tensors ({', '.join(missing[:3])})",
            expected="the weights of the whole model, with its head",
        )
    return Unwrapped(net)


@contextmanager
def _quiet(transformers: Any) -> "Iterator[None]":
    """Switch off logs and progress bars of the library, and load torch files as weights only."""
    log = transformers.utils.logging
    enabled = log.is_progress_bar_enabled()
    log.disable_progress_bar()
    try:
        with silent_hub(), only_weights():
            yield
    finally:
        if enabled:
            log.enable_progress_bar()


def view_of(processor: Any, name: str) -> View:
    """Return how pictures are resized and cropped.

    Raises:
        BadInputError: in a way that has no `View`.
    """
    view = _view(processor, name)
    picture = _picture()
    mean, std = normalisation_of(processor, name)
    processed = np.asarray(processor(Pillow.fromarray(picture), return_tensors="np")["pixel_values"][0], np.float64)
    theirs = processed * np.reshape(std, (-1, 1, 1)) + np.reshape(mean, (-1, 1, 1))
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
