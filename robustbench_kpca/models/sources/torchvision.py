"""`torchvision:NAME`: a classifier of torchvision with its default weights, and with these weights' own transforms.

Other weights are named by `--set model.weights=IMAGENET1K_V1`.
"""

from typing import Any

from torch import nn

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca.data.request import View
from robustbench_kpca.models.hub import silent_hub
from robustbench_kpca.models.source import describe, library, normalise_inside
from robustbench_kpca.models.weights_file import only_weights


def build(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """Return a model as `sources` says."""
    classifiers = _names()
    if name not in classifiers:
        raise unknown_name("torchvision classifier", name, classifiers)
    models = library("torchvision.models", f"torchvision:{name}")
    weights = _weights(models, name, options.pop("weights", "DEFAULT"))
    try:
        with silent_hub(), only_weights():
            model: nn.Module = models.get_model(name, weights=weights if pretrained else None, **options)
    except Exception as error:  # noqa: BLE001 (the download fails in many ways)
        raise BadInputError(
            f"torchvision model '{name}' could not be built ({reason_of(error)})",
            fix="without a network connection add --checkpoint FILE",
        ) from None
    transforms = weights.transforms()
    view = View.between(transforms.crop_size[0], transforms.resize_size[0], transforms.interpolation.value)
    own_classes = "num_classes" in options
    names = None if own_classes else weights.meta["categories"]
    return describe(normalise_inside(model, transforms.mean, transforms.std), view, names)


def _weights(models: Any, name: str, wanted: str) -> Any:
    choices = models.get_model_weights(name)
    if wanted != "DEFAULT" and wanted not in choices.__members__:
        raise unknown_name(f"weights of torchvision:{name}", str(wanted), choices.__members__)
    return getattr(choices, wanted)


def _names() -> list[str]:
    models = library("torchvision.models", "torchvision:")
    listed: list[str] = models.list_models(module=models)
    return [name for name in listed if not name.startswith("quantized_")]
