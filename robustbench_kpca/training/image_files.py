"""Training images from files, read by timm: folders and tar files.

The loader normalises images, because timm's random erasing needs it. The normalisation of a batch is undone afterwards,
since models take images in [0, 1].
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from PIL import Image as Pillow
from timm.data import auto_augment, create_dataset, create_transform, set_img_extensions
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.data.distributed_sampler import RepeatAugSampler
from timm.data.readers.reader_image_folder import ReaderImageFolder
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.files import sha256
from robustbench_kpca.data.io.reading import left_out, open_image, suffixes, to_rgb
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.models.families import shape_of
from robustbench_kpca.training.chosen_classes import class_numbers, require_classes
from robustbench_kpca.training.content import content_sha256
from robustbench_kpca.training.machine import epoch_seed
from robustbench_kpca.training.recipe import Recipe
from robustbench_kpca.training.source import EVALUATION_BATCH, Batch, Source
from robustbench_kpca.types import Images, Labels

FOLDER = "folder"
_Item = tuple[Tensor, int, int] | str
"""An image, its label and its number; or the name of a file that is no image."""


class ImageFileSource(Source):
    """Images of a folder or of tar files, augmented as the recipe's `[images]` says."""

    reads = Samples

    def __init__(self, recipe: Recipe, folder: Path | None, accelerator: Accelerator) -> None:
        super().__init__(recipe, folder, accelerator)
        assert recipe.images is not None
        self.settings = recipe.images
        self.side = int(shape_of(recipe.model, recipe.model_options)["img_size"])
        self.mean = torch.tensor(IMAGENET_DEFAULT_MEAN, device=accelerator.device)[:, None, None]
        self.std = torch.tensor(IMAGENET_DEFAULT_STD, device=accelerator.device)[:, None, None]
        chosen = class_numbers(self.settings.classes)
        train, val = (_reader(recipe.data, folder, part, chosen) for part in ("train", "validation"))
        _require_parts(train, val, folder)
        for reader in (train, val) if chosen else ():
            require_classes(reader, chosen)
        self.notes = tuple(line for reader in (train, val) for line in _left_out(reader))
        self.data_sha256 = _digest(train)
        self.content_sha256 = content_sha256([*_files(train), *_files(val)])
        self.train = Readable(train, self._augmentation())
        self.val = Readable(val, self._evaluation())
        self.per_process = recipe.batch_size // accelerator.num_processes
        self.sampler = self._sampler()
        self.length = len(self.sampler) // self.per_process * recipe.batch_size
        if not self.length:
            raise BadInputError(f"{len(self.train)} training images", expected=f"at least {recipe.batch_size}, a batch")

    def epoch(self, number: int) -> Iterator[Batch]:
        """Load whole batches; a last smaller one is dropped."""
        self.sampler.set_epoch(self.recipe.seed * 100_003 + number)
        for x, y, index in self._load(self.train, self.sampler, self.per_process, number):
            pixels = x * self.std + self.mean
            yield Batch(pixels, y, [str(i) for i in index], len(y) * self.accelerator.num_processes)

    def held_out(self, part: str) -> Iterator[tuple[Images, Labels]]:
        """Yield this process's share of the validation part; folders have no other."""
        if part != "val":
            return
        share = range(len(self.val))[self.share]
        for x, y, _ in self._load(self.val, share, EVALUATION_BATCH, 0, drop_last=False):
            yield x, y

    def sample(self) -> tuple[Images, int]:
        """Return a black image and the largest label."""
        return torch.zeros(1, 3, self.side, self.side), max(_classes(self.train.reader).values())

    def _load(
        self, data: Any, sampler: Any, batch_size: int, number: int, *, drop_last: bool = True
    ) -> Iterator[tuple[Images, Labels, list[int]]]:
        loader = DataLoader(
            data,
            batch_size=batch_size,
            sampler=sampler,
            num_workers=self.settings.workers,
            drop_last=drop_last,
            collate_fn=_collate,
            generator=torch.Generator().manual_seed(epoch_seed(self.recipe.seed, number, self.accelerator)),
            pin_memory=self.accelerator.device.type == "cuda",
        )
        device = self.accelerator.device
        for batch in loader:
            if isinstance(batch, str):
                raise BadInputError(f"{batch} is not a readable image", fix="replace or remove it")
            x, y, index = batch
            yield x.to(device, non_blocking=True), y.to(device, non_blocking=True), index

    def _sampler(self) -> Any:
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        if self.settings.repeats > 1:
            return RepeatAugSampler(self.train, world, rank, num_repeats=self.settings.repeats)
        return DistributedSampler(self.train, world, rank, drop_last=True)

    def _augmentation(self) -> Any:
        settings = self.settings
        whole = settings.scale == [1.0, 1.0]
        transform = self._transform(
            is_training=True,
            scale=tuple(settings.scale),
            hflip=settings.hflip,
            color_jitter=None if whole and not settings.color_jitter else settings.color_jitter,
            auto_augment=settings.auto_augment or None,
            re_prob=settings.erase,
            re_mode="pixel",
        )
        if whole:  # evaluation's resizing and centre crop, in place of the random crop
            transform.transforms[:1] = self._evaluation().transforms[:2]
        return transform

    def _evaluation(self) -> Any:
        return self._transform(is_training=False, crop_pct=self.settings.crop, mean=(0, 0, 0), std=(1, 1, 1))

    def _transform(self, **options: Any) -> Any:
        transform = create_transform(self.side, interpolation=self.settings.interpolation, **options)
        for step in transform.transforms:
            policies = getattr(step, "policy", ())
            for operation in [*getattr(step, "ops", ()), *itertools.chain(*policies)]:
                if operation.aug_fn is auto_augment.posterize:
                    operation.aug_fn = _posterize
        return transform


class Readable(Dataset[_Item]):
    """The items of a timm reader."""

    def __init__(self, reader: Any, transform: Any) -> None:
        self.reader, self.transform = reader, transform

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> _Item:
        try:
            file, label = self.reader[index]
            with file, open_image(file) as opened:
                image = to_rgb(opened)
        except (OSError, BadInputError):  # raised where the batch arrives: a loader's process would add its traceback
            return str(self.reader.filename(index))
        return self.transform(image), int(label), index


def _posterize(image: Pillow.Image, bits_to_keep: int, **_: Any) -> Pillow.Image:
    """Keep the highest bits of every value. timm sometimes asks for 0 bits, which Pillow >= 12 refuses."""
    if bits_to_keep >= 8:
        return image
    keep = 0xFF & ~((1 << (8 - bits_to_keep)) - 1)
    return image.point([value & keep for value in range(256)] * len(image.getbands()))


def _collate(items: list[_Item]) -> tuple[Tensor, Tensor, list[int]] | str:
    """Return a batch, or the name of the first file of it that is no image."""
    read = []
    for item in items:
        if isinstance(item, str):
            return item
        read.append(item)
    images, labels, index = zip(*read, strict=True)
    return torch.stack(images), torch.tensor(labels), list(index)


def _reader(name: str, root: Path | None, part: str, chosen: dict[str, int]) -> Any:
    """Return timm's reader of one part of a folder."""
    if name != FOLDER:
        raise BadInputError(f"data = '{name}' with [images]", expected=f"data = '{FOLDER}', which --data names")
    if root is None:
        raise BadInputError("a recipe that reads image files, without a folder", fix="name it: --data FOLDER")
    if not root.exists():
        raise BadInputError(f"no data at {root}", fix="check --data")
    tar = root / ("train.tar" if part == "train" else "val.tar")
    set_img_extensions(sorted(suffixes()))  # timm's own are .png, .jpg and .jpeg
    classes = {"class_map": chosen} if chosen else {}
    try:
        return create_dataset("", str(tar if tar.is_file() else root), split=part, **classes).reader
    except (RuntimeError, AssertionError, ValueError, OSError, KeyError) as error:
        where = "--data and images.classes" if chosen else "--data"
        bad_name = _odd_name(root) if isinstance(error, ValueError) else None
        reason = reason_of(error) if bad_name is None else f"'{bad_name}' has a digit that is none of 0 to 9"
        raise BadInputError(f"{root} cannot be opened ({reason})", fix=f"check {where}") from None


def _odd_name(root: Path) -> str | None:
    """Return a name in a folder that timm cannot sort: it takes digits such as ² for numbers."""
    names = (path.name for path in root.rglob("*"))
    return next((name for name in names if any(sign.isdigit() and not sign.isdecimal() for sign in name)), None)


def _digest(reader: Any) -> str:
    names = (str(reader.filename(index)) for index in range(len(reader)))
    return sha256("\n".join([*names, repr(sorted(_classes(reader).items()))]).encode())


def _files(reader: Any) -> list[Path]:
    if isinstance(reader, ReaderImageFolder):
        return [Path(path) for path, _ in reader.samples]
    return [Path(reader.root)] if Path(reader.root).is_file() else []


def _left_out(reader: Any) -> tuple[str, ...]:
    """Say which files of a folder timm ignores."""
    return left_out(Path(reader.root)) if isinstance(reader, ReaderImageFolder) else ()


def _classes(reader: Any) -> dict[str, int]:
    """Return name -> number of the classes of a reader of folders or tar files; empty where they are not listed."""
    for listed in ("class_to_idx", "class_name_to_idx"):
        classes = getattr(reader, listed, None)
        if classes:
            return dict(classes)
    return {}


def _require_parts(train: Any, val: Any, root: Path | None) -> None:
    """Refuse a folder without train and val parts, or with different classes in them.

    Without the parts timm would train and validate on the same images.
    """
    if root in (Path(train.root), Path(val.root)):  # timm falls back to it: both parts are then the same images
        raise BadInputError(f"folder {root}", expected="the sub-folders train and val")
    classes = _classes(train)
    if len(classes) < 2:
        raise BadInputError(f"{len(classes)} class in {train.root}", expected="at least 2 sub-folders with images")
    if classes != _classes(val):
        raise BadInputError(f"train and val of {root} have different classes", fix="give both the same sub-folders")
