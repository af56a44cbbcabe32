"""Models and data as they are requested, before they are loaded: by name, or as objects of a Python program."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.inference.runner import require_module
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.given import as_dataset, with_classes
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.names import is_published
from robustbench_kpca.data.pair import Pair
from robustbench_kpca.data.request import DEIT, View
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.data.subset import published_subset
from robustbench_kpca.models.bundle import WITHIN, split_entry
from robustbench_kpca.models.loading import load_model
from robustbench_kpca.models.names import home_data
from robustbench_kpca.models.source import how_read, stated_view
from robustbench_kpca.models.weights_file import HUB
from robustbench_kpca.tasks import task_named

Models = nn.Module | str | Mapping[str, nn.Module]
LOADING = ("resize_positions", "untrained")
"""Options of `load_model` itself, for any model."""


@dataclass(frozen=True)
class ModelRequest:
    """A model and its weights. Fields as in `models.loading.load_model`; `name` is the name in records."""

    model: str
    checkpoint: str | None = None
    resize_positions: bool = False
    untrained: bool = False
    name: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(
        cls, model: str, checkpoint: str | None = None, *, options: Mapping[str, Any], name: str | None = None
    ) -> "ModelRequest":
        """Take options of the architecture or the factory, and among them those of `load_model`.

        Raises:
            BadInputError: an option of `load_model` is neither true nor false.
        """
        loading = {key: options[key] for key in LOADING if key in options}
        for key, value in loading.items():
            if not isinstance(value, bool):
                raise BadInputError(f"model.{key} = {value!r}", expected="true or false")
        of_model = {key: value for key, value in options.items() if key not in LOADING}
        return cls(model, checkpoint, **loading, name=name, options=of_model)

    @property
    def settings(self) -> dict[str, Any]:
        """All options, as `of` takes them."""
        return dict(self.options) | {key: True for key in LOADING if getattr(self, key)}

    def named(self) -> "NamedModel":
        """Load it, and give it its name."""
        model = self.load()
        return NamedModel(model, self.label, ", ".join(filter(None, [self.source, how_read(model)])), self)

    def load(self) -> nn.Module:
        """Build the model and load its weights."""
        return load_model(
            self.model,
            self.checkpoint,
            untrained=self.untrained,
            resize_positions=self.resize_positions,
            **self.options,
        )

    @property
    def label(self) -> str:
        """The name of the model in records and file names."""
        if self.name:
            return self.name
        options = "".join(f"+{key}={value}" for key, value in self.options.items())
        stem = "" if self.checkpoint is None else f"@{self._file(suffix=False)}"
        drawn = "+untrained" if self.untrained else ""
        return f"{self._place()}{options}{stem}{drawn}".replace(":", "-").replace("/", "-")

    @property
    def source(self) -> str:
        """Where the weights came from and how they were loaded."""
        how = [word for word in LOADING if getattr(self, word)]
        file = [] if self.checkpoint is None else [self._file(suffix=True)]
        return f"{self.model}{' with ' if file or how else ''}{', '.join(file + how)}"

    def _place(self) -> str:
        """Return the model without the folders of its file: `sub/mine.py:make` is `mine.py:make`."""
        before, colon, after = self.model.rpartition(":")
        parts = [Path(part).absolute().name if part and Path(part).exists() else part for part in (before, after)]
        return f"{parts[0]}{colon}{parts[1]}"

    def _file(self, *, suffix: bool) -> str:
        assert self.checkpoint is not None
        file, keys = split_entry(self.checkpoint)
        name = file if file.startswith(HUB) else Path(file).name
        return WITHIN.join([name, *keys]) if suffix else "+".join([self._stem(name), *keys])

    @staticmethod
    def _stem(name: str) -> str:
        return name.removeprefix(HUB) if name.startswith(HUB) else Path(name).stem


@dataclass(frozen=True)
class NamedModel:
    """A model, its name in records, where its weights came from, and how it is loaded again, if it has a name."""

    model: nn.Module
    label: str
    source: str = "python"
    request: ModelRequest | None = None

    @classmethod
    def of(cls, model: nn.Module, name: str | None, source: str = "python") -> "NamedModel":
        """Name a model after its class if no name is given.

        Raises:
            BadInputError: it is no `torch.nn.Module`.
        """
        require_module(model)
        return cls(model, name or type(model).__name__, source)

    def named(self) -> "NamedModel":
        """Return itself: it is loaded."""
        return self


def how_shown(data: Dataset, model: nn.Module) -> str:
    """Say how a model is shown stored pictures, what else is to be said of the data, and how its weights were read."""
    how = f"are resized: {data.resized}" if data.resized else ""
    if not how and data.raw:
        how = "are shown as they are: {1} x {0}".format(*data.size(0))
    parts = [f"pictures of {data.name} {how}"] * bool(how) + list(data.notes)
    return "; ".join(parts + [f"of the checkpoint: {read}" for read in [how_read(model)] if read])


@dataclass(frozen=True)
class DataRequest:
    """The requested samples.

    Attributes:
        data: the name of a data set, a folder, or NAME:FOLDER; None: the set of the models' own family. Or samples that
            a Python program gives, all of which are meant; of the other fields only `size` and `crop` are for them.
        split: see `data.load.load_data`; `robustbench`: the 5,000 ImageNet validation images that RobustBench uses.
        limit: see `data.load.load_data`.
        against: images of unknown classes, for out-of-distribution detection.
        size: side in pixels at which models are shown pictures; None: as each model states, or as they are.
        crop: the short side is resized to size / crop, and the centre cropped; None: as the model states, but nothing
            is cropped where `size` is given. Published sets are always cropped.
        classes: number of classes, where the labels do not have all of them.
    """

    data: str | Dataset | None
    split: str | None = None
    limit: int | None = None
    against: str | None = None
    size: int | None = None
    crop: float | None = None
    classes: int | None = None

    def of(self, models: Iterable[str]) -> "DataRequest":
        """Return the request with the data set of the models' own family where none is named.

        Raises:
            BadInputError: the models have no such set, or several.
        """
        if self.data is not None:
            return self
        homes = {name: home_data(name) for name in models}
        names = set(homes.values())
        if len(names) != 1 or None in names:
            odd = next((name for name, home in homes.items() if home is None), next(iter(homes)))
            what = f"model '{odd}' is of no data set of the package" if None in names else "models of several data sets"
            raise BadInputError(f"{what}, and no data are given", fix="add --data NAME or --data FOLDER")
        return replace(self, data=names.pop())

    def view_for(self, named: "NamedModel") -> View | None:
        """Return how a model is shown the samples; None: as they are, as a module takes tensors and arrays."""
        as_tensors = isinstance(self.data, Dataset) and not self.data.raw
        return None if as_tensors and named.request is None else stated_view(named.model)

    def load_for(self, model: nn.Module) -> Dataset:
        """Load the samples as a model takes them; see `load`."""
        return self.load(stated_view(model))

    def load(self, stated: View | None) -> Dataset:
        """Load the samples for models that state this view, or none.

        Raises:
            BadInputError: the data cannot be loaded, two options contradict each other, or pictures have several sizes
                or another one than the model takes, and no `size` is given.
        """
        if isinstance(self.data, Dataset):
            return self.fitted(self.data, stated)
        assert self.data is not None, "DataRequest.of"
        data = self._load(self.data, self.split, stated)
        if self.against is not None:
            first = Samples.require(data)
            data = Pair(first, Samples.require(self._load(self.against, None, stated)))
        return with_classes(data, self.classes)

    def fitted(self, data: Dataset, stated: View | None) -> Dataset:
        """Return data with pictures as `size` and `crop` say, or else as a model states it.

        Raises:
            BadInputError: see `Compute.at_size`; a crop without a size.
        """
        view = self._view(stated)
        resized: Dataset = task_named(data.task).compute.at_size(data, view, requested=self._is_resized)
        return resized

    @property
    def _is_resized(self) -> bool:
        return self.size is not None or self.crop is not None

    def _view(self, stated: View | None) -> View | None:
        if not self._is_resized:
            return stated
        if stated is None and self.size is None:
            raise BadInputError(f"crop {self.crop} without a size, and the model states none", fix="add --size N")
        like = stated or DEIT
        return replace(like, size=self.size or like.size, crop=self.crop)

    def _load(self, source: str, split: str | None, stated: View | None) -> Dataset:
        view = self._view(stated) if is_published(source) else None
        published = split == "robustbench"
        data = load_data(source, None if published else split, view=view)
        data = self.fitted(published_subset(Samples.require(data)) if published else data, stated)
        return data if self.limit is None else data.spread(self.limit)


def models_of(model: Models, name: str | None, source: str) -> list[ModelRequest | NamedModel]:
    """Return the models: one by its name, as the command line has it; a module; or several by their names in records.

    Args:
        model: the models.
        name: name of a single model, in its record.
        source: where modules came from.

    Raises:
        BadInputError: none are given, or one is no `torch.nn.Module`.
    """
    if isinstance(model, str):
        return [ModelRequest(model, name=name)]
    if not isinstance(model, Mapping):
        return [NamedModel.of(model, name, source)]
    if any(isinstance(value, Tensor) for value in model.values()):
        raise BadInputError(
            f"a state dict of {len(model)} tensors",
            expected="a model",
            fix="build the model and let it load them: model.load_state_dict(...)",
        )
    if not model or name is not None:
        raise BadInputError(f"{len(model)} models and name = {name!r}", expected="models by their names, and no name")
    return [NamedModel.of(module, label, source) for label, module in model.items()]


def data_of(
    model: Models,
    images: Any,
    labels: Any = None,
    *,
    classes: int | None = None,
    size: int | None = None,
    crop: float | None = None,
) -> DataRequest:
    """Return the data: by name, or as in `data.given.as_dataset`; None: the set of the family of a named model.

    Raises:
        BadInputError: no data, for models that are no names.
    """
    if images is None and not isinstance(model, str):
        raise BadInputError("a model without data", expected="images, or the name of data", fix='give "digits"')
    if images is None or isinstance(images, str):
        return DataRequest(images, size=size, crop=crop, classes=classes)
    return DataRequest(as_dataset(images, labels, classes=classes), size=size, crop=crop)


def data_for(model: nn.Module, images: Any, labels: Any = None) -> Dataset:
    """Return the samples, sorted, as a module takes them."""
    request = data_of(model, images, labels)
    return request.load(request.view_for(NamedModel.of(model, None))).in_order()
