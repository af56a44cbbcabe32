"""Segment images of any size: slide windows of one size over them, in full batches, and average overlapping logits.

Source: Strudel, Garcia, Laptev & Schmid (2021), "Segmenter: Transformer for Semantic Segmentation", arXiv:2105.05633.
Along each axis of length n, windows of side w start at 0, s, 2s, ... (s the stride) and, the last, at n - w. With
z_k(p) the logits of window k at pixel p and K(p) the windows that contain p,

    z(p) = 1/|K(p)| sum_{k in K(p)} z_k(p)            prediction(p) = argmax_c (z resized)_c(p)

where z is resized (bilinear) from the size that is shown to that of the image. Difference from the original: an image
smaller than a window is padded (right and bottom, mid-grey) instead of enlarged. All logits of an image are in memory
at once, 4 bytes a class and pixel.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._engine.inference.runner import Presentation, Runner, call
from robustbench_kpca.types import Images, Logits

Prediction = NDArray[np.int16]
T = TypeVar("T")
GREY = 0.5
"""Padding of images smaller than a window."""
BATCH_VALUES = 2**26  # largest number of logits in one batch: 256 MiB in single precision
EVERY_PIXEL = Presentation(
    call,
    lambda logits, x: logits.ndim == 4 and len(logits) == len(x) and logits.shape[2:] == x.shape[2:],
    expected="logits for every pixel: (batch, classes, height, width)",
    fix="for images with masks choose a segmenter, such as symvit_shapes",
)


def starts(length: int, window: int, stride: int) -> list[int]:
    """Return where windows start along an axis; the last window ends at the end of the axis.

    >>> starts(1000, 512, 400)
    [0, 400, 488]
    """
    last = max(length - window, 0)
    return [*range(0, last, stride), last]


@dataclass(frozen=True)
class Windowing:
    """Settings of sliding-window inference.

    window: side of the windows, in pixels.
    stride: distance from one window to the next, in pixels.
    resize: `short-side`: the image is first resized (bilinear, aspect ratio kept) so that its short side equals the
        window; `none`: it keeps its size.
    """

    window: int
    stride: int
    resize: Literal["none", "short-side"] = "none"

    def __post_init__(self) -> None:
        if not 0 < self.stride <= self.window:
            raise BadInputError(
                f"window = {self.window}, stride = {self.stride}",
                expected="0 < stride <= window, so that windows cover every pixel",
            )

    @classmethod
    def of(
        cls, model: nn.Module, window: int, stride: int, resize: Literal["none", "short-side"] = "none"
    ) -> "Windowing":
        """Build the settings; window 0 is the training window of the model, stride 0 equals the window."""
        side = window or own_window(model)
        if side < 1:
            raise BadInputError(
                f"the window at which this {type(model).__name__} was trained is unknown",
                fix="choose a segmenter, such as symvit_shapes, or set window, for example window = 512",
            )
        return cls(side, stride or side, resize)

    def starts(self, length: int) -> list[int]:
        """Return where windows start along an axis."""
        return starts(length, self.window, self.stride)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) at which an image is shown."""
        share = self.window / min(height, width) if self.resize == "short-side" else 1.0
        return max(1, round(height * share)), max(1, round(width * share))


def own_window(model: nn.Module) -> int:
    """Return the side of the training window of a segmenter in pixels, 0 if it is unknown."""
    side = getattr(model, "window", 0)
    return side if isinstance(side, int) and side > 0 else 0


def batch_size_for(classes: int, window: int, most: int) -> int:
    """Return the default batch size: `most`, or fewer if the logits of that many windows exceed 256 MiB."""
    return max(1, min(most, BATCH_VALUES // (classes * window**2)))


def first_window(image: NDArray[np.uint8], windowing: Windowing) -> Tensor:
    """Return the first window of an image, at the upper left: (3, window, window) in [0, 1]."""
    return next(_Picture(image, windowing, torch.device("cpu")).windows())[1]


class _Picture:
    """An image in progress: the sums of its windows' logits on a canvas that the windows cover."""

    def __init__(self, image: NDArray[np.uint8], windowing: Windowing, device: torch.device) -> None:
        self.pixels = torch.from_numpy(np.ascontiguousarray(image)).to(device).permute(2, 0, 1) / 255
        self.canvas, self.side = windowing.size(*image.shape[:2]), windowing.window
        self.padding = [max(self.side - length, 0) for length in self.canvas]
        self.corners = [(y, x) for y in windowing.starts(self.canvas[0]) for x in windowing.starts(self.canvas[1])]
        self.remaining = len(self.corners)
        self.sums = torch.empty(0)
        self.prediction: Prediction | None = None

    def windows(self) -> Iterator[tuple[tuple[int, int], Tensor]]:
        """Yield the corner of every window, and its input of the model."""
        pixels = self.pixels
        if pixels.shape[1:] != self.canvas:
            pixels = F.interpolate(pixels[None], self.canvas, mode="bilinear", align_corners=False)[0]
        canvas = F.pad(pixels, (0, self.padding[1], 0, self.padding[0]), value=GREY)
        for corner in self.corners:
            yield corner, self._at(canvas, corner)

    def take(self, corner: tuple[int, int], logits: Tensor) -> None:
        """Add the logits of a window, (classes, side, side); after the last, decide the class of every pixel."""
        if len(self.corners) == 1:
            self.sums = logits
        else:
            if not len(self.sums):
                shape = [length + padding for length, padding in zip(self.canvas, self.padding, strict=True)]
                self.sums = logits.new_zeros(len(logits), *shape)
            self._at(self.sums, corner).add_(logits)
        self.remaining -= 1
        if self.remaining:
            return
        classes, largest = first_largest(self._means())
        if not bool(torch.isfinite(largest.sum())):
            raise EvaluationError("the model returned NaN or infinite logits", fix="check its weights")
        self.prediction, self.sums = classes.cpu().numpy(), torch.empty(0)

    def _means(self) -> Tensor:
        """Return the mean logits over windows, (classes, height, width), resized to the image's own size."""
        means, size = self.sums, self.pixels.shape[1:]
        if len(self.corners) > 1:
            counts = torch.zeros_like(means[0])
            for corner in self.corners:
                self._at(counts, corner).add_(1)
            means /= counts
        means = means[:, : self.canvas[0], : self.canvas[1]]
        if self.canvas == size:
            return means
        return F.interpolate(means[None], size, mode="bilinear", align_corners=False)[0]

    def _at(self, canvas: Tensor, corner: tuple[int, int]) -> Tensor:
        y, x = corner
        return canvas[..., y : y + self.side, x : x + self.side]


def first_largest(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return, per place, the class of the largest score as int16, and that score; ties go to the lowest class.

    `scores` has shape (classes, ...). On a CPU, this loop over the classes is several times faster than `max(0)`.
    """
    if scores.device.type != "cpu":
        largest, classes = scores.max(0)
        return classes.to(torch.int16), largest
    kind = torch.uint8 if len(scores) <= 256 else torch.int16
    largest = scores[0].clone()
    classes = torch.zeros_like(largest, dtype=kind)
    new, larger = torch.empty_like(classes), torch.empty_like(largest, dtype=torch.bool)
    for number, row in enumerate(scores[1:], start=1):
        torch.gt(row, largest, out=larger)
        torch.maximum(largest, row, out=largest)
        torch.mul(larger.view(torch.uint8) if kind == torch.uint8 else larger.to(kind), number, out=new)
        torch.maximum(classes, new, out=classes)
    return classes.to(torch.int16), largest


class Stream(Generic[T]):
    """Segments a sequence of images; windows of different images share batches of exactly the runner's batch size.

    Each image has a tag. Predictions are returned with their tags, in order, some images later. `decided` counts the
    windows of all images that have been returned.
    """

    def __init__(self, runner: Runner, windowing: Windowing) -> None:
        self.runner, self.windowing = runner, windowing
        self.decided = 0
        self._pictures: deque[tuple[T, _Picture]] = deque()
        self._waiting: list[tuple[_Picture, tuple[int, int], Tensor]] = []

    def put(self, tag: T, image: NDArray[np.uint8]) -> list[tuple[T, Prediction]]:
        """Queue an image, run all full batches, and return the predictions that are complete."""
        picture = _Picture(image, self.windowing, self.runner.device)
        self._pictures.append((tag, picture))
        for window in picture.windows():
            self._waiting.append((picture, *window))
            if len(self._waiting) == self.runner.batch_size:
                self._run()
        return self._decided()

    def flush(self) -> list[tuple[T, Prediction]]:
        """Run the remaining windows and return the remaining predictions."""
        if self._waiting:
            self._run()
        return self._decided()

    def _run(self) -> None:
        batch, self._waiting = self._waiting, []
        frames = torch.stack([pixels for *_, pixels in batch])
        logits = self.runner.logits(frames).detach()
        EVERY_PIXEL.require(logits, frames)
        for (picture, corner, _), window_logits in zip(batch, logits, strict=True):
            picture.take(corner, window_logits)

    def _decided(self) -> list[tuple[T, Prediction]]:
        decided = []
        while self._pictures and (prediction := self._pictures[0][1].prediction) is not None:
            tag, picture = self._pictures.popleft()
            self.decided += len(picture.corners)
            decided.append((tag, prediction))
        return decided


def through_windows(model: Callable[[Images], Logits], images: Images, window: int) -> Logits:
    """Return mean logits, (batch, classes, height, width), of windows side by side; gradients reach the images.

    `model` is called on (batch, 3, window, window). Windows, padding and averaging are those of `Stream`.
    """
    height, width = images.shape[2:]
    padded = F.pad(images, (0, max(window - width, 0), 0, max(window - height, 0)), value=GREY)
    places = [
        (slice(y, y + window), slice(x, x + window))
        for y in starts(padded.shape[2], window, window)
        for x in starts(padded.shape[3], window, window)
    ]
    first = model(padded[:, :, *places[0]])
    if len(places) == 1:
        return first[:, :, :height, :width]
    total, count = first.new_zeros(*first.shape[:2], *padded.shape[2:]), first.new_zeros(padded.shape[2:])
    for number, place in enumerate(places):
        total[:, :, *place] += model(padded[:, :, *place]) if number else first
        count[place] += 1
    return (total / count)[:, :, :height, :width]
