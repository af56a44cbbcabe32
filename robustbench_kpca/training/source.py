"""Sources of training batches: one process's share of every global batch, in a reproducible order."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import AbsentPartError, BadInputError
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.samples import ArraySamples, Samples
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.task import Task
from robustbench_kpca.tasks.training import Training
from robustbench_kpca.training.recipe import Recipe
from robustbench_kpca.types import Images, Labels

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Batch:
    """This process's part of a global batch."""

    x: Images
    """Images in [0, 1], except for pixels that random erasing has filled."""
    y: Labels
    ids: Sequence[str]
    count: int
    """Images of the global batch, over all processes."""
    weight: Tensor | float = 1.0
    """Weight of one label in the loss. It is 1 where every image has one label. Otherwise it is the number of images of
    the global batch, divided by its number of labels that count, both over all processes."""


@dataclass(frozen=True)
class Drawn:
    """What is random of a batch: places of its images in the data, shifts, and whether each is mirrored."""

    index: Tensor
    offsets: Tensor
    flipped: Tensor
    count: int
    """Images of the global batch."""


class Source(ABC):
    """Training and held-out images, as one process of several sees them.

    Args:
        folder: folder of the files, for sources that read files; others do not use it.

    Attributes:
        reads: the kind of data that batches are made of; it says the task, too.
        length: images of one epoch, over all processes; 0 if unknown.
        vocabulary_sha256: see `Dataset`.
        data_sha256: digest of the training data; of files, of their names and classes; "" if they are streamed.
        notes: what of a folder was left out.
        content_sha256: digest of the content of files (`training.content`); "" where `data_sha256` covers it.

    Raises:
        BadInputError: the processes cannot share the batches evenly.
    """

    reads: ClassVar[type[Dataset]]
    length: int
    vocabulary_sha256: str | None = None
    data_sha256: str
    content_sha256: str = ""
    notes: tuple[str, ...] = ()

    def __init__(self, recipe: Recipe, folder: Path | None, accelerator: Accelerator) -> None:
        self.recipe, self.folder, self.accelerator = recipe, folder, accelerator
        pair = 2 if recipe.mixup is not None else 1
        if recipe.batch_size % (pair * accelerator.num_processes):
            raise BadInputError(
                f"batch_size {recipe.batch_size} for {accelerator.num_processes} processes{' in pairs' * (pair > 1)}",
                expected=f"a multiple of {pair * accelerator.num_processes}",
            )

    @property
    def share(self) -> slice:
        """Which samples of a batch, or of a part, are those of this process."""
        return slice(self.accelerator.process_index, None, self.accelerator.num_processes)

    def part(self, name: str) -> Dataset:
        """Return a part of the recipe's data set, from the folder if there is one."""
        return load_data(self.recipe.data if self.folder is None else f"{self.recipe.data}:{self.folder}", name)

    @property
    def task(self) -> Task:
        """What a model is trained to do with these images."""
        return task_named(self.reads.task)

    @property
    def training(self) -> Training:
        """The losses and scores of the task.

        Raises:
            BadInputError: no model can be trained for it.
        """
        if self.task.compute.training is None:
            raise BadInputError(f"training for {self.task.name}", expected="a task that models can be trained for")
        return self.task.compute.training

    @abstractmethod
    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of one epoch; random choices depend on the seed and `number` only."""

    @abstractmethod
    def held_out(self, part: str) -> Iterator[tuple[Images, Labels]]:
        """Yield this process's share of `val` or `test`; nothing if there is no such part."""

    @abstractmethod
    def sample(self) -> tuple[Images, int]:
        """Return one image and the largest label, to check that a model fits."""


class InMemory(Source):
    """A data set held in the device's memory, pictures with a byte a value; they are augmented by shifts and flips.

    The folder is that of a set that is not bundled, such as `uea`.
    """

    reads = ArraySamples

    def __init__(self, recipe: Recipe, folder: Path | None, accelerator: Accelerator) -> None:
        super().__init__(recipe, folder, accelerator)
        samples = Samples.require(self.part("train"))
        changes = (recipe.max_shift, recipe.hflip, recipe.mixup, recipe.adversarial)
        if any(changes) and not samples.form.box:
            raise BadInputError(
                f"max_shift, hflip, [mixup] or [adversarial] for {samples.form.name}",
                expected="none of them",
                fix="remove them from the recipe; they are for images",
            )
        self.ids, self.length, self.vocabulary_sha256 = samples.ids, len(samples), samples.vocabulary_sha256
        self.data_sha256 = samples.digest()
        self.pixels, self.labels = self._on_device(samples)
        self._held_out: dict[str, tuple[Tensor, Labels]] = {}  # read once, used after every epoch

    def epoch(self, number: int) -> Iterator[Batch]:
        """Shuffle, divide into global batches, shift and flip each image, and keep every n-th for this process.

        A last smaller batch is dropped under [mixup], which needs pairs, and if some process would have no image.
        """
        return (self.taken(drawn) for drawn in self.draws(number))

    def draws(self, number: int) -> Iterator[Drawn]:
        """Yield what is random of every batch of an epoch."""
        recipe = self.recipe
        rng = torch.Generator().manual_seed(recipe.seed * 100_003 + number)
        least = recipe.batch_size if recipe.mixup is not None else self.accelerator.num_processes
        for index in torch.randperm(self.length, generator=rng).split(recipe.batch_size):
            if len(index) < least:
                return
            offsets = torch.zeros(len(index), 2, dtype=torch.int64)
            if recipe.max_shift:
                offsets = torch.randint(0, 2 * recipe.max_shift + 1, (len(index), 2), generator=rng)
            flipped = torch.zeros(len(index), dtype=torch.bool)
            if recipe.hflip:
                flipped = torch.rand(len(index), generator=rng) < recipe.hflip
            yield Drawn(index[self.share], offsets[self.share], flipped[self.share], len(index))

    def taken(self, drawn: Drawn) -> Batch:
        """Return the images of a draw, flipped and shifted."""
        x, recipe = self.pixels[drawn.index], self.recipe
        if recipe.hflip:
            x = torch.where(drawn.flipped.to(x.device)[:, None, None, None], x.flip(-1), x)
        if recipe.max_shift:
            x = shift(x, drawn.offsets, recipe.max_shift)
        ids = [self.ids[i] for i in drawn.index.tolist()]
        return Batch(in_unit_box(x), self.labels[drawn.index], ids, drawn.count)

    def held_out(self, part: str) -> Iterator[tuple[Images, Labels]]:
        """Yield every n-th image of `val` or `test`."""
        if part not in self._held_out:
            try:
                images, labels = self._on_device(Samples.require(self.part(part)))
            except AbsentPartError:
                if part == "test":  # published, but without labels, or not at all
                    return
                raise
            self._held_out[part] = images[self.share], labels[self.share]
        images, labels = self._held_out[part]
        for x, y in zip(images.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH), strict=True):
            yield in_unit_box(x), y

    def sample(self) -> tuple[Images, int]:
        """Return the first image and the largest label."""
        return in_unit_box(self.pixels[:1]), int(self.labels.max())

    def _on_device(self, samples: Samples) -> tuple[Tensor, Labels]:
        first, device = samples.image(0), self.accelerator.device
        if not isinstance(first, np.ndarray) or first.dtype != np.uint8:
            images, labels = samples.tensors()
            return images.to(device), labels.to(device)
        pixels = torch.from_numpy(np.stack([samples.image(i) for i in range(len(samples))]))
        return pixels.permute(0, 3, 1, 2).contiguous().to(device), torch.tensor(samples.labels).to(device)


def in_unit_box(values: Tensor) -> Images:
    """Return bytes as float32 in [0, 1], as `Pictures.tensor` does; floats stay what they are."""
    return values.float() / 255 if values.dtype == torch.uint8 else values


def shift(images: Tensor, offsets: Tensor, reach: int) -> Tensor:
    """Shift image i by `offsets[i] - reach` pixels (down, right); the border is filled with black.

    Args:
        images: (batch, channels, height, width), of any type.
        offsets: int64 (batch, 2), from 0 to 2 * reach.
        reach: the largest shift.
    """
    _, _, height, width = images.shape
    windows = F.pad(images, (reach, reach, reach, reach)).unfold(2, height, 1).unfold(3, width, 1)
    rows, columns = (2 * reach - offsets.to(images.device)).unbind(1)
    return windows[torch.arange(len(images), device=images.device), :, rows, columns].contiguous()
