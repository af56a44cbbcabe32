"""`timm:NAME`: a model of the library timm with its weights, normalised inside by its own mean and std."""

from typing import Any

from torch import nn

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca.models.checkpoint import only_weights
from robustbench_kpca.models.hub import silent_hub
from robustbench_kpca.models.normalisation import normalise_inside
from robustbench_kpca.models.source import describe, library


def build(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """Return a model as `sources` says."""
    timm = library("timm", f"timm:{name}")
    if name.split(".")[0] not in timm.list_models():
        raise unknown_name("timm model", name, timm.list_models())
    try:
        with silent_hub(), only_weights():
            model: nn.Module = timm.create_model(name, pretrained=pretrained, **options)
    except Exception as error:  # noqa: BLE001 (the hub fails in many ways)
        raise BadInputError(
            f"timm model '{name}' could not be built ({reason_of(error)})",
            fix="without a network connection add --checkpoint FILE",
        ) from None
    settings: Any = model.pretrained_cfg
    return describe(normalise_inside(model, settings["mean"], settings["std"]), class_names=_class_names(timm, model))


def _class_names(timm: Any, model: Any) -> Any:
    """Return the WordNet ids of a model with the classes of an ImageNet; None for other numbers of classes."""
    subset = timm.data.infer_imagenet_subset(model)
    return timm.data.ImageNetInfo(subset).label_names() if subset else None
