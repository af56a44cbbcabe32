"""Models and data as a Python program gives them: by name, or as objects."""

import logging
from collections.abc import Iterable
from typing import Any

from torch import nn

from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.given import as_dataset, with_classes
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest, how_shown
from robustbench_kpca.evaluation.trial import NamedModel
from robustbench_kpca.models.source import stated_view

_LOG = logging.getLogger("robustbench_kpca")


def named_model(model: nn.Module | str, name: str | None, source: str) -> NamedModel:
    """Load a model by its name, as the command line does, or name a module after its class."""
    if not isinstance(model, str):
        return NamedModel.of(model, name, source)
    request = ModelRequest(model, name=name)
    return NamedModel(request.load(), request.label, request.source if source == "python" else source, request)


def data_for(
    model: nn.Module | str,
    loaded: nn.Module,
    images: Any,
    labels: Any = None,
    classes: int | None = None,
    size: int | None = None,
    crop: float | None = None,
) -> Dataset:
    """Return the samples, sorted, as the model takes them; a module takes tensors and arrays as they are given.

    Args:
        model: the name of the model, or the model itself.
        loaded: the model.
        images: a name of data, or as in `data.given.as_dataset`; None: the set of the family of a named model.
        labels: see `data.given.as_dataset`.
        classes: see `data.given.as_dataset`.
        size: see `DataRequest`.
        crop: see `DataRequest`.

    """
    if images is None and not isinstance(model, str):
        raise BadInputError("a model without data", expected="images, or the name of data", fix='give "digits"')
    request = DataRequest(images if isinstance(images, str) else None, size=size, crop=crop)
    if images is None or isinstance(images, str):
        data = with_classes(request.of([str(model)]).load_for(loaded), classes)
    else:
        data = as_dataset(images, labels, classes=classes)
        data = request.fitted(data, stated_view(loaded) if isinstance(model, str) or data.raw else None)
    if data.resized:
        _LOG.warning(how_shown(data))
    return data.in_order()


def data_for_all(models: Iterable[nn.Module], images: Any, labels: Any) -> Dataset:
    """Return samples that several models share, sorted.

    Raises:
        BadInputError: pictures of a folder or a collection, for models that take them differently.

    """
    data, shared = as_dataset(images, labels), list(models)
    if data.raw and len({stated_view(model) for model in shared}) > 1:
        raise BadInputError(
            f"data '{data.name}' for models that take pictures differently", fix="evaluate the models one by one"
        )
    for model in shared[:1]:
        data = data_for(model, model, data)
    return data.in_order()
