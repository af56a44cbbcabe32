"""Samples whose labels are numbered as a model numbers its classes, and pictures at the size that a model takes."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.request import View
from robustbench_kpca.data.samples import Samples, SamplesPart


class Relabelled(SamplesPart):
    """The same samples; label i is now `numbers[i]`, one of `classes` classes. The digest is that of the new labels."""

    def __init__(self, whole: Samples, numbers: Mapping[int, int], classes: int, names: Sequence[str] | None) -> None:
        super().__init__(whole, range(len(whole)))
        self.strata = [numbers[label] for label in whole.labels]
        self.classes, self.class_names, self.held = classes, None if names is None else tuple(names), None
        self.counted = False


class Resized(SamplesPart):
    """The same pictures, each resized and cropped by a `View`. The view is part of the digest."""

    def __init__(self, whole: Samples, view: View) -> None:
        super().__init__(whole, range(len(whole)))
        self.view, self.resized, self.raw = view, view.how, False

    def image(self, index: int) -> NDArray[np.uint8]:
        """Picture number `index`, resized."""
        image = self.whole.image(index)
        if isinstance(image, Tensor):
            raise BadInputError(
                f"pictures of data '{self.name}' are tensors, which are not resized", fix="give them at this size"
            )
        try:
            return np.array(self.view.apply(Pillow.fromarray(image)))
        except BadInputError as error:
            raise BadInputError(f"picture {self.ids[index]} cannot be used ({error})", fix="remove it") from None

    def size(self, index: int) -> tuple[int, int]:  # noqa: ARG002 (all pictures have one size)
        """Return height and width of the view."""
        return self.view.size, self.view.size

    def fingerprint(self, index: int) -> str:
        """Return the fingerprint of the picture as it was, and how it is resized."""
        return f"{self.whole.fingerprint(index)} {self.view.how}"
