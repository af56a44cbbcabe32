"""`hf:OWNER/NAME`, or `hf:FOLDER`: an image classifier or segmenter of the library transformers.

The model comes from a folder made by `save_pretrained`, from the local cache of the Hugging Face hub, or else from the
hub. Its image processor says how pictures are resized and normalised. No code of a repository is ever run.
"""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.models.checkpoint import only_weights, silent_hub
from robustbench_kpca.models.normalisation import normalise_inside
from robustbench_kpca.models.source import Source, describe, library
from robustbench_kpca.models.sources._image_processor import normalisation_of, view_of

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONS = ("revision", "attn_implementation")


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


class Enlarged(Unwrapped):
    """A segmenter of transformers, whose logits are enlarged to the size of the picture by bilinear interpolation."""

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, classes, height, width)."""
        return F.interpolate(super().forward(x), x.shape[2:], mode="bilinear", align_corners=False)


def _build(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    odd = next((key for key in options if key not in OPTIONS), None)
    if odd is not None:
        raise BadInputError(f"'model.{odd}' of hf:{name} cannot be set", expected=f"one of {', '.join(OPTIONS)}")
    library("huggingface_hub", f"hf:{name}", "transformers")
    transformers = library("transformers", f"hf:{name}", "transformers")
    if not Path(name).is_dir() and name.count("/") != 1:
        raise BadInputError(f"there is no folder '{name}'", expected="hf:OWNER/NAME of the hub, or hf:FOLDER")
    how = {"trust_remote_code": False, **{key: options[key] for key in options if key == "revision"}}
    try:
        with _quiet(transformers):
            config = transformers.AutoConfig.from_pretrained(name, **how)
            processor = transformers.AutoImageProcessor.from_pretrained(name, **how)
            model = _load(transformers, name, config, pretrained, how | options)
    except BadInputError:
        raise
    except Exception as error:  # noqa: BLE001 (the hub and the library fail in many ways)
        raise BadInputError(
            f"model 'hf:{name}' cannot be loaded ({_reason(error)})",
            expected="config.json, preprocessor_config.json and model.safetensors, of a model that is part of "
            "transformers (code from a repository is not run)",
            fix="check the name and the network, or give a folder",
        ) from None
    mean, std = normalisation_of(processor, name)
    labels: dict[int, str] = config.id2label
    names = [labels[index] for index in sorted(labels)]
    named = not any(one.startswith("LABEL_") for one in names)  # the library's names where the authors gave none
    return describe(normalise_inside(model, mean, std), view_of(processor, name), names if named else None)


def _load(transformers: Any, name: str, config: Any, pretrained: bool, how: dict[str, Any]) -> Unwrapped:
    """Build the model in single precision, whatever the precision of the file."""
    wrap: type[Unwrapped] = Unwrapped
    made_for = " ".join(config.architectures or ["ForImageClassification"])
    if "ForSemanticSegmentation" in made_for:
        auto, wrap = transformers.AutoModelForSemanticSegmentation, Enlarged
    elif "ForImageClassification" in made_for:
        auto = transformers.AutoModelForImageClassification
    else:
        raise BadInputError(
            f"model 'hf:{name}' is a {made_for}", expected="a model ForImageClassification or ForSemanticSegmentation"
        )
    if not pretrained:
        return wrap(auto.from_config(config, dtype=torch.float32))
    net, found = auto.from_pretrained(name, dtype=torch.float32, output_loading_info=True, **how)
    missing = sorted(found["missing_keys"]) + sorted(str(key) for key in found["mismatched_keys"])
    if missing:
        raise BadInputError(
            f"the weights of 'hf:{name}' lack {len(missing)} tensors ({', '.join(missing[:3])})",
            expected="the weights of the whole model, with its head",
        )
    return wrap(net)


@contextmanager
def _quiet(transformers: Any) -> "Iterator[None]":
    """Switch off logs and progress bars of the library, and load torch files as weights only."""
    log = transformers.utils.logging
    shown = log.is_progress_bar_enabled()
    log.disable_progress_bar()
    try:
        with silent_hub(), only_weights():
            yield
    finally:
        if shown:
            log.enable_progress_bar()


def _reason(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:120]


def _has(name: str) -> bool:
    return name.count("/") == 1 or (Path(name) / "config.json").is_file()


SOURCE = Source(_build, _has)
