"""Segment images of any size: slide windows of one size over them, in full batches, and average overlapping logits.

Source: Strudel, Garcia, Laptev & Schmid (2021), "Segmenter: Transformer for Semantic Segmentation", arXiv:2105.05633.
Along each axis of length n, windows of side w start at 0, s, 2s, ... (s the stride) and, the last, at n - w. With
z_k(p) the logits of window k at pixel p and K(p) the windows that contain p,

    z(p) = 1/|K(p)| sum_{k in K(p)} z_k(p)                               logits are averaged where windows overlap
    prediction(p) = argmax_c sum_{scales, mirrored or not} softmax(resize z)_c(p)         probabilities across passes

where z is resized (bilinear) from the size of the pass to the size of the image. With a single pass the softmax is left
out, which does not change the argmax. Difference from the original: an image smaller than a window is padded (right
and bottom, mid-grey) instead of enlarged. All logits of a pass are in memory at once, 4 bytes a class and pixel.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._engine.inference.runner import Presentation, Runner, call, device_for
from robustbench_kpca._engine.inference.sliding_window.tiles import GREY, starts

Prediction = NDArray[np.int16]
T = TypeVar("T")
BATCH_VALUES = 2**26  # largest number of logits in one batch: 256 MiB in single precision
EVERY_PIXEL = Presentation(
    call,
    lambda logits, x: logits.ndim == 4 and len(logits) == len(x) and logits.shape[2:] == x.shape[2:],
    expected="logits for every pixel: (batch, classes, height, width)",
    fix="for images with masks choose a segmenter, such as symvit_shapes",
)


@dataclass(frozen=True)
class Windowing:
    """Settings of sliding-window inference.

    window: side of the windows, in pixels.
    stride: distance from one window to the next, in pixels.
    scales: sizes of the image relative to its own; one pass per scale.
    flip: whether each pass is repeated on the mirrored image.
    resize: `short-side`: before scaling, the image is resized (bilinear, aspect ratio kept) so that its short side
        equals the window; `none`: it keeps its size.
    """

    window: int
    stride: int
    scales: tuple[float, ...] = (1.0,)
    flip: bool = False
    resize: Literal["none", "short-side"] = "none"

    def __post_init__(self) -> None:
        if not 0 < self.stride <= self.window or not self.scales or min(self.scales) <= 0:
            raise BadInputError(
                f"window = {self.window}, stride = {self.stride}, scales = {list(self.scales)}",
                expected="0 < stride <= window, so that windows cover every pixel, and scales above 0",
            )

    @classmethod
    def of(cls, model: nn.Module, window: int, stride: int, **how: object) -> "Windowing":
        """Build the settings; window 0 is the training window of the model, stride 0 equals the window."""
        side = window or own_window(model)
        if side < 1:
            raise BadInputError(
                f"the window at which this {type(model).__name__} was trained is unknown",
                fix="choose a segmenter, such as symvit_shapes, or set window, for example window = 512",
            )
        return cls(side, stride or side, **how)  # type: ignore[arg-type]

    def starts(self, length: int) -> list[int]:
        """Return where windows start along an axis."""
        return starts(length, self.window, self.stride)

    def sizes(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return (height, width) of the image at each scale."""
        whole = self.window / min(height, width) if self.resize == "short-side" else 1.0
        return [(max(1, round(height * whole * scale)), max(1, round(width * whole * scale))) for scale in self.scales]


def own_window(model: nn.Module) -> int:
    """Return the side of the training window of a segmenter in pixels, 0 if it is unknown."""
    side = getattr(model, "window", 0)
    return side if isinstance(side, int) and side > 0 else 0


def batch_size_for(classes: int, window: int, most: int) -> int:
    """Return the default batch size: `most`, or fewer if the logits of that many windows exceed 256 MiB."""
    return max(1, min(most, BATCH_VALUES // (classes * window**2)))


def segment(
    model: nn.Module | Runner,
    image: NDArray[np.uint8],
    *,
    window: int = 0,
    stride: int = 0,
    scales: tuple[float, ...] = (1.0,),
    flip: bool = False,
    resize: Literal["none", "short-side"] = "none",
) -> Prediction:
    """Classify every pixel of one image.

    Args:
        model: a segmenter in evaluation mode, or its `Runner`; it maps images in [0, 1] of shape (batch, 3, height,
            width) to logits (batch, classes, height, width).
        image: uint8, shape (height, width, 3).
        window: side of the windows in pixels; 0 is the training window of the model.
        stride: distance from one window to the next in pixels; 0 equals the window.
        scales: see `Windowing`.
        flip: see `Windowing`.
        resize: see `Windowing`.

    Returns:
        int16, shape (height, width): classes from 0.
    """
    inner = model.model if isinstance(model, Runner) else model
    windowing = Windowing.of(inner, window, stride, scales=tuple(scales), flip=flip, resize=resize)
    if not isinstance(model, Runner):
        size = batch_size_for(int(getattr(model, "classes", 150)), windowing.window, 16)
        model = Runner(model, size, device_for(model, None), presentation=EVERY_PIXEL)
    stream = Stream[None](model, windowing)
    ((_, prediction),) = stream.put(None, image) + stream.flush()
    return prediction


def first_window(image: NDArray[np.uint8], windowing: Windowing) -> Tensor:
    """Return the first window of an image, at the upper left: (3, window, window) in [0, 1]."""
    return next(_Picture(image, windowing, torch.device("cpu")).windows())[2]


class _Pass:
    """The logits of an image at one size, mirrored or not, on a canvas that windows cover.

    Args:
        size: (height, width) to which the image is resized.
    """

    def __init__(self, size: tuple[int, int], windowing: Windowing, *, mirrored: bool) -> None:
        self.size, self.side, self.mirrored = size, windowing.window, mirrored
        self.padding = [max(self.side - length, 0) for length in size]
        self.corners = [(y, x) for y in windowing.starts(size[0]) for x in windowing.starts(size[1])]
        self.remaining = len(self.corners)
        self.sums = torch.empty(0)

    def windows(self, pixels: Tensor) -> Iterator[tuple[tuple[int, int], Tensor]]:
        """Yield the corner of every window, and what it shows of an image (3, height, width) in [0, 1]."""
        if pixels.shape[1:] != self.size:
            pixels = F.interpolate(pixels[None], self.size, mode="bilinear", align_corners=False)[0]
        pixels = pixels.flip(2) if self.mirrored else pixels
        canvas = F.pad(pixels, (0, self.padding[1], 0, self.padding[0]), value=GREY)
        for y, x in self.corners:
            yield (y, x), canvas[:, y : y + self.side, x : x + self.side]

    def add(self, corner: tuple[int, int], logits: Tensor) -> None:
        """Add the logits of a window, (classes, side, side)."""
        self.remaining -= 1
        if len(self.corners) == 1:
            self.sums = logits
            return
        if not len(self.sums):
            shape = [length + padding for length, padding in zip(self.size, self.padding, strict=True)]
            self.sums = logits.new_zeros(len(logits), *shape)
        self._at(self.sums, corner).add_(logits)

    def means(self, shown: tuple[int, int]) -> Tensor:
        """Return the mean logits over windows, (classes, height, width), resized to the image's own size."""
        means = self.sums
        if len(self.corners) > 1:
            counts = torch.zeros_like(means[0])
            for corner in self.corners:
                self._at(counts, corner).add_(1)
            means /= counts
        means = means[:, : self.size[0], : self.size[1]]
        means = means.flip(2) if self.mirrored else means
        if self.size == shown:
            return means
        return F.interpolate(means[None], shown, mode="bilinear", align_corners=False)[0]

    def _at(self, canvas: Tensor, corner: tuple[int, int]) -> Tensor:
        y, x = corner
        return canvas[..., y : y + self.side, x : x + self.side]


class _Picture:
    """An image in progress: its passes, one after the other, and the sums of their probabilities."""

    def __init__(self, image: NDArray[np.uint8], windowing: Windowing, device: torch.device) -> None:
        self.size = image.shape[0], image.shape[1]
        self.pixels = torch.from_numpy(np.ascontiguousarray(image)).to(device).permute(2, 0, 1) / 255
        mirrors = (False, True) if windowing.flip else (False,)
        sizes = windowing.sizes(*self.size)
        self.passes = [_Pass(size, windowing, mirrored=mirrored) for size in sizes for mirrored in mirrors]
        self.count = sum(len(single.corners) for single in self.passes)
        self.scores: Tensor | None = None
        self.prediction: Prediction | None = None

    def windows(self) -> Iterator[tuple[_Pass, tuple[int, int], Tensor]]:
        """Yield every window: its pass, its corner, and its input of the model."""
        for single in self.passes:
            for corner, pixels in single.windows(self.pixels):
                yield single, corner, pixels

    def take(self, single: _Pass, corner: tuple[int, int], logits: Tensor) -> None:
        """Add the logits of a window; after the last, decide the class of every pixel."""
        single.add(corner, logits)
        if single.remaining:
            return
        means, single.sums = single.means(self.size), torch.empty(0)
        if len(self.passes) > 1:
            means = means.softmax(0)
        self.scores = means if self.scores is None else self.scores.add_(means)
        if single is self.passes[-1]:
            classes, largest = first_largest(self.scores)
            if not bool(torch.isfinite(largest.sum())):
                raise EvaluationError("the model returned NaN or infinite logits", fix="check its weights")
            self.prediction, self.scores = classes.cpu().numpy(), None


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
        self._waiting: list[tuple[_Picture, _Pass, tuple[int, int], Tensor]] = []

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
        for (picture, single, corner, _), own in zip(batch, logits, strict=True):
            picture.take(single, corner, own)

    def _decided(self) -> list[tuple[T, Prediction]]:
        decided = []
        while self._pictures and (prediction := self._pictures[0][1].prediction) is not None:
            tag, picture = self._pictures.popleft()
            self.decided += picture.count
            decided.append((tag, prediction))
        return decided
