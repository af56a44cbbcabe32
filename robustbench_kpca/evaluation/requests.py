"""Models and data as the user requests them, before they are loaded."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.io.cache import cached
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.pair import Pair
from robustbench_kpca.data.request import View
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.data.subset import published_subset
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.models.checkpoint import HUB
from robustbench_kpca.models.loading import home_data, load_model
from robustbench_kpca.models.source import stated_view
from robustbench_kpca.progress import Progress
from robustbench_kpca.tasks import task_named


@dataclass(frozen=True)
class ModelRequest:
    """A model and its weights. Fields as in `models.loading.load_model`; `name` is the name in records."""

    model: str
    checkpoint: str | None = None
    ema: bool = False
    resize_positions: bool = False
    untrained: bool = False
    name: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> nn.Module:
        """Build the model and load its weights."""
        return load_model(
            self.model, self.checkpoint, untrained=self.untrained, ema=self.ema,
            resize_positions=self.resize_positions, **self.options,
        )  # fmt: skip

    @property
    def label(self) -> str:
        """The name of the model in records and file names."""
        if self.name:
            return self.name
        options = "".join(f"+{key}={value}" for key, value in self.options.items())
        stem = "" if self.checkpoint is None else f"@{self._file(suffix=False)}"
        drawn = "+untrained" if self.untrained else ""
        return f"{self._place()}{options}{stem}{'+ema' if self.ema else ''}{drawn}".replace(":", "-").replace("/", "-")

    @property
    def source(self) -> str:
        """Where the weights came from and how they were loaded."""
        words = ("ema", "resize_positions", "untrained")
        how = [word for word in words if getattr(self, word)]
        file = [] if self.checkpoint is None else [self._file(suffix=True)]
        return f"{self.model}{' with ' if file or how else ''}{', '.join(file + how)}"

    def _place(self) -> str:
        """Return the model without the folders of its file: `sub/mine.py:make` is `mine.py:make`."""
        before, colon, after = self.model.rpartition(":")
        parts = [Path(part).absolute().name if part and Path(part).exists() else part for part in (before, after)]
        return f"{parts[0]}{colon}{parts[1]}"

    def _file(self, *, suffix: bool) -> str:
        assert self.checkpoint is not None
        if self.checkpoint.startswith(HUB):
            return self.checkpoint if suffix else self.checkpoint.removeprefix(HUB)
        return Path(self.checkpoint).name if suffix else Path(self.checkpoint).stem


@dataclass(frozen=True)
class DataRequest:
    """The requested samples.

    Attributes:
        data: the name of a data set, a folder, or NAME:FOLDER; None: the set of the models' own family.
        split: see `data.load.load_data`.
        limit: see `data.load.load_data`.
        against: images of unknown classes, for out-of-distribution detection.
        subset: 5000: the ImageNet validation images that RobustBench uses.
        bad_images: see `data.load.load_data`.
        cache: folder that stores decoded images.
        size: side in pixels at which models are shown pictures; None: as each model states.

    """

    data: str | None
    split: str | None = None
    limit: int | None = None
    against: str | None = None
    subset: int | None = None
    bad_images: Literal["fail", "skip"] = "fail"
    cache: Path | None = None
    size: int | None = None

    def of(self, models: Iterable[str]) -> "DataRequest":
        """Return the request with the data set of the models' own family where none is named.

        Raises:
            BadInputError: the models have no such set, or several.

        """
        if self.data is not None:
            return self
        homes = {name: home_data(name) for name in models}
        found = set(homes.values())
        if len(found) != 1 or None in found:
            odd = next((name for name, home in homes.items() if home is None), next(iter(homes)))
            met = f"model '{odd}' is of no data set of the package" if None in found else "models of several data sets"
            raise BadInputError(f"{met}, and no data are given", fix="add --data NAME or --data FOLDER")
        return replace(self, data=found.pop())

    def load_for(self, model: nn.Module, progress: Progress | None = None) -> Dataset:
        """Load the samples as a model takes them.

        Raises:
            BadInputError: as in `load`, or pictures of another size than the model's, and no `size` is given.

        """
        stated = stated_view(model)
        view = stated or View()
        view = view if self.size is None else view.at(self.size)
        return self.load(view, progress, fit=stated is not None or self.size is not None)

    def load(self, view: View, progress: Progress | None = None, *, fit: bool = False) -> Dataset:
        """Load the samples, image files resized and cropped by `view`; `fit`: refuse other pictures of another size.

        Raises:
            BadInputError: the data cannot be loaded, or two options contradict each other.

        """
        if self.subset is not None and self.limit is not None:
            raise BadInputError(f"--subset {self.subset} with --limit {self.limit}", expected="only one of them")
        assert self.data is not None, "DataRequest.of"
        data = self._load(self.data, self.split, view, fit=fit)
        if self.subset is not None:
            data = published_subset(Samples.require(data), self.subset)
        if self.against is not None:
            known = Samples.require(data)
            data = Pair(known, Samples.require(self._load(self.against, None, view, fit=fit)))
        return data if self.cache is None else cached(Samples.require(data), self.cache, progress)

    def _load(self, source: str, split: str | None, view: View, *, fit: bool) -> Dataset:
        data = load_data(source, split, self.limit, view, self.bad_images)
        if not fit:
            return data
        found: Dataset = task_named(data.task).compute.at_size(data, view, asked=self.size is not None)
        return found
