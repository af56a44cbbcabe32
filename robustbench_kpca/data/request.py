"""What is asked of a data set: where its files are, which split, how images are resized, what to do with bad files."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from PIL import Image as Pillow

from robustbench_kpca.errors import BadInputError

BadImages = Literal["fail", "skip"]
"""What to do with files that cannot be read: fail when the first is met, or leave all of them out when loading."""


@dataclass(frozen=True)
class View:
    """How an image file becomes a model's input: short side resized to size / crop, then the centre, size x size.

    The default is DeiT's evaluation (256 and 224). It is part of what a model was published with: timm's own
    configurations differ in `crop`, which moves an accuracy by a point or two. Sizes and corners are rounded as by
    torchvision's Resize and CenterCrop, which gives the same pixels.

    Raises:
        BadInputError: no size, a crop outside (0, 1], an interpolation that Pillow does not know.

    """

    size: int = 224
    crop: float = 0.875
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 < self.crop <= 1:
            raise BadInputError(
                f"a view of size {self.size} and crop {self.crop:g}", expected="a crop above 0, up to 1"
            )
        known = [name.lower() for name in Pillow.Resampling.__members__]
        if self.interpolation.lower() not in known:
            raise BadInputError(f"interpolation '{self.interpolation}'", expected=f"one of {', '.join(known)}")

    @property
    def short_side(self) -> int:
        """Length to which the short side is resized."""
        return int(self.size / self.crop)

    def apply(self, image: Pillow.Image) -> Pillow.Image:
        """Resize and crop."""
        short, long = sorted(image.size)
        stretched = int(self.short_side * long / short)
        if self.short_side * stretched > (Pillow.MAX_IMAGE_PIXELS or np.inf):
            raise BadInputError(f"an image of {image.width} x {image.height}", expected="a less extreme shape")
        size = (self.short_side, stretched) if image.width <= image.height else (stretched, self.short_side)
        image = image.resize(size, Pillow.Resampling[self.interpolation.upper()])
        left, top = (round((side - self.size) / 2) for side in size)
        return image.crop((left, top, left + self.size, top + self.size))


@dataclass(frozen=True)
class Request:
    """What the `load` of every data set is given.

    Attributes:
        folder: where the files lie; empty where none was given.
        split: part of the set; None is the set's own default.
        view: how image files are resized and cropped. Sets of images of a fixed size, and scenes, do not use it.
        bad_images: what to do with files that cannot be read.

    Raises:
        BadInputError: another value of `bad_images`.

    """

    folder: str = ""
    split: str | None = None
    view: View = field(default_factory=View)
    bad_images: BadImages = "fail"

    def __post_init__(self) -> None:
        if self.bad_images not in get_args(BadImages):
            raise BadInputError(f"bad_images '{self.bad_images}'", expected="fail or skip")

    def split_of(self, name: str, splits: Sequence[str]) -> str:
        """Return the split asked of the set `name`, one of `splits`; the first of them where none was asked.

        Raises:
            BadInputError: the set has no such split.

        """
        if self.split is None:
            return splits[0]
        if self.split not in splits:
            raise BadInputError(f"{name} has no split '{self.split}'", fix=f"known: {', '.join(splits)}")
        return self.split

    def refuse_folder(self, name: str) -> None:
        """Refuse a folder, because the set `name` is read from no folder of the user's choice.

        Raises:
            BadInputError: a folder was given.

        """
        if self.folder:
            raise BadInputError(f"a folder ({self.folder}) for {name}", expected=f"{name} alone, without a folder")
