"""Models and data as a Python program gives them: by name, or as objects."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.given import as_dataset
from robustbench_kpca.evaluation.requests import DataRequest, GivenData, ModelRequest, NamedModel

Models = nn.Module | str | Mapping[str, nn.Module]


def models_of(model: Models, name: str | None, source: str) -> list[ModelRequest | NamedModel]:
    """Return the models: one by its name, as the command line has it; a module; or several by their names in records.

    Args:
        model: the models.
        name: name in records of a single one; default: its own, or that of its class.
        source: where modules came from.

    Raises:
        BadInputError: none are given, or one is no `torch.nn.Module`.

    """
    if isinstance(model, str):
        return [ModelRequest(model, name=name)]
    if not isinstance(model, Mapping):
        return [NamedModel.of(model, name, source)]
    if not model or name is not None:
        raise BadInputError(f"{len(model)} models and name = {name!r}", expected="models by their names, and no name")
    return [NamedModel.of(one, own, source) for own, one in model.items()]


def data_of(
    model: Models,
    images: Any,
    labels: Any = None,
    classes: int | None = None,
    size: int | None = None,
    crop: float | None = None,
) -> DataRequest | GivenData:
    """Return the data: by name, or as in `data.given.as_dataset`; None: the set of the family of a named model.

    Raises:
        BadInputError: no data, for models that are no names.

    """
    if images is None and not isinstance(model, str):
        raise BadInputError("a model without data", expected="images, or the name of data", fix='give "digits"')
    if images is None or isinstance(images, str):
        return DataRequest(images, size=size, crop=crop, classes=classes)
    return GivenData(as_dataset(images, labels, classes=classes), size, crop)


def data_for(model: nn.Module, images: Any, labels: Any = None) -> Dataset:
    """Return the samples, sorted, as a module takes them."""
    request = data_of(model, images, labels)
    return request.load(request.view_for(NamedModel.of(model, None))).in_order()
