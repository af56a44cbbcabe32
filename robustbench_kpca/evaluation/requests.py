"""Models and data as the user requests them, before they are loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
from robustbench_kpca.models.loading import load_model
from robustbench_kpca.progress import Progress


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
        return f"{self.model}{options}{stem}{'+ema' if self.ema else ''}".replace(":", "-").replace("/", "-")

    @property
    def source(self) -> str:
        """Where the weights came from and how they were loaded."""
        how = [word for word, asked in (("ema", self.ema), ("resize_positions", self.resize_positions)) if asked]
        file = [] if self.checkpoint is None else [self._file(suffix=True)]
        return f"{self.model}{' with ' if file or how else ''}{', '.join(file + how)}"

    def _file(self, *, suffix: bool) -> str:
        assert self.checkpoint is not None
        if self.checkpoint.startswith(HUB):
            return self.checkpoint if suffix else self.checkpoint.removeprefix(HUB)
        return Path(self.checkpoint).name if suffix else Path(self.checkpoint).stem


@dataclass(frozen=True)
class DataRequest:
    """The requested samples.

    Attributes:
        data: the name of a data set, a folder, or NAME:FOLDER.
        split: see `data.load.load_data`.
        limit: see `data.load.load_data`.
        against: images of unknown classes, for out-of-distribution detection.
        subset: 5000: the ImageNet validation images that RobustBench uses.
        bad_images: see `data.load.load_data`.
        cache: folder that stores decoded images.

    """

    data: str
    split: str | None = None
    limit: int | None = None
    against: str | None = None
    subset: int | None = None
    bad_images: Literal["fail", "skip"] = "fail"
    cache: Path | None = None

    def load(self, view: View, progress: Progress | None = None) -> Dataset:
        """Load the samples, resized and cropped by `view`.

        Raises:
            BadInputError: the data cannot be loaded, or two options contradict each other.

        """
        if self.subset is not None and self.limit is not None:
            raise BadInputError(f"--subset {self.subset} with --limit {self.limit}", expected="only one of them")
        data = load_data(self.data, self.split, self.limit, view, self.bad_images)
        if self.subset is not None:
            data = published_subset(Samples.require(data), self.subset)
        if self.against is not None:
            unknown = load_data(self.against, None, self.limit, view, self.bad_images)
            data = Pair(Samples.require(data), Samples.require(unknown))
        return data if self.cache is None else cached(Samples.require(data), self.cache, progress)
