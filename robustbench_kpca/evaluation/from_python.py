"""Models and data as a Python program gives them: by name, or as objects."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.given import as_dataset
from robustbench_kpca.evaluation.requests import DataRequest, GivenData, ModelRequest, NamedModel

Models = nn.Module | str | Mapping[str, nn.Module]


@dataclass(frozen=True)
class HowGiven:
    """What a Python program says of its models and data; the fields are keywords of `evaluate`.

    Attributes:
        classes: number of classes of the images, where their labels do not have all of them.
        size: side in pixels to which pictures are resized, without cropping. By default pictures of a folder or of a
            collection are as a named model, or `describe`, states it, or else as they are; arrays always as they are.
        crop: such as 0.875: the short side is resized to size / crop, and the centre cropped. The record says how
            pictures were resized and cropped (`spec.data.resized`).
        name: name of a single model in the record; default: its own, or the name of its class.
        source: where modules came from, for the record.

    """

    classes: int | None = None
    size: int | None = None
    crop: float | None = None
    name: str | None = None
    source: str = "python"


def models_of(model: Models, how: HowGiven) -> list[ModelRequest | NamedModel]:
    """Return the models: one by its name, as the command line has it; a module; or several by their names in records.

    Args:
        model: the models.
        how: their names, and where they came from.

    Raises:
        BadInputError: none are given, or one is no `torch.nn.Module`.

    """
    if isinstance(model, str):
        return [ModelRequest(model, name=how.name)]
    if not isinstance(model, Mapping):
        return [NamedModel.of(model, how.name, how.source)]
    if not model or how.name is not None:
        raise BadInputError(
            f"{len(model)} models and name = {how.name!r}", expected="models by their names, and no name"
        )
    return [NamedModel.of(module, own, how.source) for own, module in model.items()]


def data_of(model: Models, images: Any, labels: Any = None, how: HowGiven = HowGiven()) -> DataRequest | GivenData:
    """Return the data: by name, or as in `data.given.as_dataset`; None: the set of the family of a named model.

    Raises:
        BadInputError: no data, for models that are no names.

    """
    if images is None and not isinstance(model, str):
        raise BadInputError("a model without data", expected="images, or the name of data", fix='give "digits"')
    if images is None or isinstance(images, str):
        return DataRequest(images, size=how.size, crop=how.crop, classes=how.classes)
    return GivenData(as_dataset(images, labels, classes=how.classes), how.size, how.crop)


def data_for(model: nn.Module, images: Any, labels: Any = None) -> Dataset:
    """Return the samples, sorted, as a module takes them."""
    request = data_of(model, images, labels)
    return request.load(request.view_for(NamedModel.of(model, None))).in_order()
