"""Models and data as a Python program gives them: by name, or as objects."""

from typing import Any

from torch import nn

from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.given import as_dataset
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest
from robustbench_kpca.evaluation.trial import NamedModel
from robustbench_kpca.models.loading import input_view
from robustbench_kpca.models.source import stated_view
from robustbench_kpca.tasks import task_named


def named_model(model: nn.Module | str, name: str | None, source: str) -> NamedModel:
    """Load a model by its name, as the command line does, or name a module after its class."""
    if not isinstance(model, str):
        return NamedModel.of(model, name, source)
    request = ModelRequest(model, name=name)
    return NamedModel(request.load(), request.label, request.source if source == "python" else source, request)


def data_for(
    model: nn.Module | str, loaded: nn.Module, images: Any, labels: Any, classes: int | None, size: int | None
) -> Dataset:
    """Return the samples, sorted; a folder, or pictures of a data set, as the model takes them.

    Args:
        model: the name of the model, or the model itself.
        loaded: the model.
        images: a name of data, or as in `data.given.as_dataset`; None: the set of the family of a named model.
        labels: see `data.given.as_dataset`.
        classes: see `data.given.as_dataset`.
        size: side in pixels at which the model is shown pictures; None: as it states, if data or model are named.

    """
    if images is None and not isinstance(model, str):
        raise BadInputError("a model without data", expected="images, or the name of data", fix='give "digits"')
    if images is None or isinstance(images, str):
        asked = DataRequest(images, size=size).of([str(model)])
        return asked.load_for(loaded).in_order()
    view = input_view(loaded)
    data = as_dataset(images, labels, classes=classes, view=view)
    if size is None and not (isinstance(model, str) and stated_view(loaded)):
        return data.in_order()
    wanted = view.at(size or view.size)
    found: Dataset = task_named(data.task).compute.at_size(data, wanted, asked=size is not None)
    return found.in_order()
