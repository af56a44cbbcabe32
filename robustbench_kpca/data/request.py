"""The request for a data set: folder, split, how to resize images, and what to do with unreadable files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from PIL import Image as Pillow

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.io.reading import pixel_limit

"""What to do with unreadable files: `fail` at the first one, or `skip` all of them when loading."""


@dataclass(frozen=True)
class View:
    """How a picture becomes the input of a model: resized, and cropped where a crop is stated.

    With a crop, the short side is resized to size / crop, and the centre is cropped to size. Sizes and corners are
    rounded as in torchvision's Resize and CenterCrop, so the pixels are equal. Without one, both sides are resized to
    size, whatever the aspect ratio, and nothing is cropped. Models must be evaluated with the view of their
    publication: timm's configurations differ in `crop`, which changes the accuracy by 1 or 2 percentage points.

    Raises:
        BadInputError: a size below 1, a crop outside (0, 1], an interpolation unknown to Pillow.
    """

    size: int
    crop: float | None = None
    interpolation: str = "bicubic"
    squash: bool = False
    """Resize both sides to size / crop, whatever the aspect ratio, before the centre is cropped."""
    library: Literal["torchvision", "transformers"] = "torchvision"
    """Whose corner of the crop: torchvision rounds half a pixel to even, transformers rounds it down."""

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 < (1 if self.crop is None else self.crop) <= 1:
            raise BadInputError(
                f"a view of size {self.size} and crop {self.crop}", expected="size >= 1 and 0 < crop <= 1"
            )
        names = [name.lower() for name in Pillow.Resampling.__members__]
        if self.interpolation.lower() not in names:
            raise BadInputError(f"interpolation '{self.interpolation}'", expected=f"one of {', '.join(names)}")

    @classmethod
    def between(
        cls,
        size: int,
        short_side: int,
        interpolation: str,
        library: Literal["torchvision", "transformers"] = "torchvision",
    ) -> "View":
        """Resize the short side to `short_side`, exactly, and crop the centre to `size`."""
        crop = size / short_side
        if int(size / crop) != short_side:  # rounded down to one pixel less
            crop = size / (short_side + 0.5)
        return cls(size, crop, interpolation, library=library)

    @property
    def of_published(self) -> "View":
        """The same with DeiT's crop, unless another is stated: published sets are cropped."""
        return replace(self, crop=DEIT.crop) if self.crop is None else self

    @property
    def short_side(self) -> int:
        """Length to which the short side is resized, in pixels."""
        return int(self.size / (self.crop or 1))

    @property
    def how(self) -> str:
        """The resizing in words; part of the digest of image files."""
        if self.crop is None:
            return f"{self.interpolation} {self.size} x {self.size}, not cropped"
        if self.squash:
            of = "" if self.short_side == self.size else f" of {self.short_side}"
            return f"{self.interpolation} {self.size}{of}, squashed"
        return f"{self.interpolation} {self.size} of {self.short_side}, as {self.library}"

    def apply(self, image: Pillow.Image) -> Pillow.Image:
        """Resize and crop an image."""
        short, long = (1, 1) if self.squash or self.crop is None else sorted(image.size)
        stretched = int(self.short_side * long / short)
        if self.short_side * stretched > pixel_limit():
            raise BadInputError(f"an image of {image.width} x {image.height}", expected="a less extreme aspect ratio")
        size = (self.short_side, stretched) if image.width <= image.height else (stretched, self.short_side)
        image = image.resize(size, Pillow.Resampling[self.interpolation.upper()])
        down = self.library == "transformers"
        left, top = (rest // 2 if down else round(rest / 2) for rest in (side - self.size for side in size))
        return image.crop((left, top, left + self.size, top + self.size))


DEIT = View(224, 0.875)
"""Of DeiT's evaluation: how published sets are shown where the model states nothing."""


@dataclass(frozen=True)
class Request:
    """The argument of `load` of every data set.

    Attributes:
        folder: folder of the files; empty if none is given.
        split: split of the set; None: the default of the set.
        view: how the image files of a published set are resized and cropped. Sets of fixed image size, and images with
            masks, ignore it.
    """

    folder: str = ""
    split: str | None = None
    view: View = DEIT

    def split_of(self, name: str, splits: Sequence[str]) -> str:
        """Return the requested split of the set `name`, which must be one of `splits`; default: the first of them."""
        if self.split is None:
            return splits[0]
        if self.split not in splits:
            raise BadInputError(f"{name} has no split '{self.split}'", fix=f"known: {', '.join(splits)}")
        return self.split

    def refuse_folder(self, name: str) -> None:
        """Refuse a folder: the set `name` is not read from a folder that the user chooses."""
        if self.folder:
            raise BadInputError(f"{name} takes no folder ({self.folder})", expected=f"{name} without a folder")
