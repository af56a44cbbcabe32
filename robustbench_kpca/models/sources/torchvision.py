"""`torchvision:NAME`: a classifier of torchvision with its default weights, and with these weights' own transforms.

Other weights are named by `--set model.weights=IMAGENET1K_V1`.
"""

from typing import Any

from torch import nn

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca.data.request import View
from robustbench_kpca.models.hub import silent_hub
from robustbench_kpca.models.normalisation import normalise_inside
from robustbench_kpca.models.source import describe, library
from robustbench_kpca.models.weights_file import only_weights


def build(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """Return a model as `sources` says."""
    known = _names()
    if name not in known:
        raise unknown_name("torchvision classifier", name, known)
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
    shown = weights.transforms()
    view = View.between(shown.crop_size[0], shown.resize_size[0], shown.interpolation.value)
    own = "num_classes" in options
    names = None if own else weights.meta["categories"]
    return describe(normalise_inside(model, shown.mean, shown.std), view, names)


def _weights(models: Any, name: str, wanted: str) -> Any:
    known = models.get_model_weights(name)
    if wanted != "DEFAULT" and wanted not in known.__members__:
        raise unknown_name(f"weights of torchvision:{name}", str(wanted), known.__members__)
    return getattr(known, wanted)


def _names() -> list[str]:
    models = library("torchvision.models", "torchvision:")
    listed: list[str] = models.list_models(module=models)
    return [name for name in listed if not name.startswith("quantized_")]
