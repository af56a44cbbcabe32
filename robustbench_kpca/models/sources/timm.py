"""`timm:NAME`: a model of the library timm with its weights, normalised inside by its own mean and std."""

from typing import Any

from torch import nn

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca.models.hub import silent_hub
from robustbench_kpca.models.placement import place
from robustbench_kpca.models.source import describe, library, normalise_inside
from robustbench_kpca.models.weights_file import only_weights

_OF_TIMM = ("num_classes", "img_size", "drop_rate", "drop_path_rate")
"""Options that stay timm's where an attention is named; all others are the attention's."""


def build(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """Return a model as `sources` says; `attention` and `layers` among the options put another attention into it."""
    timm = library("timm", f"timm:{name}")
    if name.split(".")[0] not in timm.list_models():
        raise unknown_name("timm model", name, timm.list_models())
    attention, layers = options.pop("attention", None), options.pop("layers", "all")
    special = {} if attention is None else {key: options.pop(key) for key in [*options] if key not in _OF_TIMM}
    try:
        with silent_hub(), only_weights():
            model: nn.Module = timm.create_model(name, pretrained=pretrained, **options)
    except Exception as error:  # noqa: BLE001 (the hub fails in many ways)
        raise BadInputError(
            f"timm model '{name}' could not be built ({reason_of(error)})",
            fix="without a network connection add --checkpoint FILE",
        ) from None
    if attention is not None:
        place(model, attention, layers, **special)
    settings: Any = model.pretrained_cfg
    return describe(normalise_inside(model, settings["mean"], settings["std"]), class_names=_class_names(timm, model))


def _class_names(timm: Any, model: Any) -> Any:
    """Return the WordNet ids of a model with the classes of an ImageNet; None for other numbers of classes."""
    subset = timm.data.infer_imagenet_subset(model)
    return timm.data.ImageNetInfo(subset).label_names() if subset else None
