"""`hf:OWNER/NAME`, or `hf:FOLDER`: an image classifier, a segmenter or a causal language model of transformers.

The model comes from a folder made by `save_pretrained`, from the local cache of the Hugging Face hub, or else from the
hub. The image processor says how pictures are resized and normalised; words are numbered as the model's tokens are. No
code of a repository is ever run.
"""

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca.models.checkpoint import only_weights
from robustbench_kpca.models.hub import silent_hub
from robustbench_kpca.models.normalisation import normalise_inside
from robustbench_kpca.models.source import describe, library
from robustbench_kpca.models.sources._image_processor import normalisation_of, view_of
from robustbench_kpca.models.sources._wrappers import CausalLM, Enlarged, Unwrapped

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONS = ("revision", "attn_implementation", "window")


def build(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """Return a model as `sources` says."""
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
            model = _load(transformers, name, config, pretrained, options | how)
            if isinstance(model, CausalLM):
                return model
            processor = transformers.AutoImageProcessor.from_pretrained(name, **how)
    except BadInputError:
        raise
    except Exception as error:  # noqa: BLE001 (the hub and the library fail in many ways)
        raise BadInputError(
            f"model 'hf:{name}' cannot be loaded ({reason_of(error)})",
            expected="config.json, model.safetensors and, for pictures, preprocessor_config.json, of a model that is "
            "part of transformers (code from a repository is not run)",
            fix="check the name and the network, or give a folder",
        ) from None
    mean, std = normalisation_of(processor, name)
    labels: dict[int, str] = config.id2label
    names = [labels[index] for index in sorted(labels)]
    named = not any(label.startswith("LABEL_") for label in names)  # the library's names where the authors gave none
    return describe(normalise_inside(model, mean, std), view_of(processor, name), names if named else None)


def _load(transformers: Any, name: str, config: Any, pretrained: bool, how: dict[str, Any]) -> Unwrapped:
    """Build the model in single precision, whatever the precision of the file."""
    wrap: Any = Unwrapped
    made_for = " ".join(config.architectures or ["ForImageClassification"])
    if "ForSemanticSegmentation" in made_for:
        auto, wrap = transformers.AutoModelForSemanticSegmentation, Enlarged
    elif "ForImageClassification" in made_for:
        auto = transformers.AutoModelForImageClassification
    elif made_for in set(transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
        auto, wrap = transformers.AutoModelForCausalLM, partial(CausalLM, window=how.get("window"))
    else:
        raise BadInputError(
            f"model 'hf:{name}' is a {made_for}",
            expected="a model ForImageClassification, ForSemanticSegmentation or ForCausalLM",
        )
    how = {key: value for key, value in how.items() if key != "window"}
    if not pretrained:
        built: Unwrapped = wrap(auto.from_config(config, dtype=torch.float32))
        return built
    net, report = auto.from_pretrained(name, dtype=torch.float32, output_loading_info=True, **how)
    missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if missing:
        raise BadInputError(
            f"the weights of 'hf:{name}' lack {len(missing)} tensors ({', '.join(missing[:3])})",
            expected="the weights of the whole model, with its head",
        )
    whole: Unwrapped = wrap(net)
    return whole


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
