"""Segment images of any size: slide windows of one size over them, in full batches, and average overlapping logits.

Source: Strudel, Garcia, Laptev & Schmid (2021), "Segmenter: Transformer for Semantic Segmentation", arXiv:2105.05633.
Along each axis of length n, windows of side w start at 0, s, 2s, ... (s the stride) and, the last, at n - w. With
z_k(p) the logits of window k at pixel p and K(p) the windows that contain p,

    z(p) = 1/|K(p)| sum_{k in K(p)} z_k(p)                               logits are averaged where windows overlap
    prediction(p) = argmax_c sum_{scales, mirrored or not} softmax(resize z)_c(p)         probabilities across passes

where z is resized (bilinear) from the size of the pass to the size of the image. With a single pass the softmax is left
out, which does not change the argmax. Differences from the original: an image smaller than a window is padded (right
and bottom, mid-grey) instead of enlarged; and the logits of a single resized pass are resized row by row.
"""

from collections import deque
from dataclasses import dataclass
from math import isqrt
from typing import Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._engine.inference.runner import Presentation, Runner, call, device_for
from robustbench_kpca._engine.inference.sliding_window._accumulate import Bands, WindowSums, first_largest
from robustbench_kpca._engine.inference.sliding_window._schedule import Pass, Window, schedule
from robustbench_kpca._engine.inference.sliding_window.tiles import GREY, starts

Prediction = NDArray[np.int16]
T = TypeVar("T")
BATCH_VALUES = 2**26  # largest number of logits in one batch: 256 MiB in single precision
SQUARE_VALUES = 2**19  # number of logits that are resized together
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
    picture = _Picture(image, windowing, torch.device("cpu"))
    return picture.shown(picture.windows[0], torch.empty(3, windowing.window, windowing.window))


class _Picture:
    """An image in progress: its windows in the order of processing, and its prediction so far.

    With a single pass, pixels are decided window by window. With several passes, probabilities are summed in bands; a
    band is decided and released when every pass has completed it. All passes advance together along the longer side of
    the image, so that few and short bands are in memory.
    """

    def __init__(self, image: NDArray[np.uint8], windowing: Windowing, device: torch.device) -> None:
        self.size = size = image.shape[0], image.shape[1]
        self.windowing = windowing
        self.prediction: Prediction = np.empty(size, np.int16)
        sizes = windowing.sizes(*size)
        self.alone = len(sizes) == 1 and not windowing.flip
        self.turned = not self.alone and size[1] > size[0]
        self.target = self.prediction.T if self.turned else self.prediction
        self.pixels = torch.from_numpy(np.ascontiguousarray(image)[None]).to(device).permute(0, 3, 1, 2)
        self.strip, self.strip_of = self.pixels, ((0, 0), 0)
        mirrors = (True, False) if windowing.flip else (False,)
        self.passes = [self._pass(shape, mirrored=mirrored) for shape in sizes for mirrored in mirrors]
        self.windows = schedule(self.passes)
        self.open = len(self.windows)
        self.ready = dict.fromkeys(self.passes, 0)
        self.bands = Bands(self.target.shape, turned=self.turned)

    def _pass(self, size: tuple[int, int], *, mirrored: bool) -> Pass:
        side, stride = self.windowing.window, self.windowing.stride
        down, across = (tuple(starts(length, side, stride)) for length in size)
        if mirrored:  # in the picture itself
            across = tuple(max(size[1] - side, 0) - start for start in reversed(across))
        if self.turned:
            return Pass(size[::-1], self.size[::-1], (across, down), side, mirrored=mirrored, turned=True)
        return Pass(size, self.size, (down, across), side, mirrored=mirrored, alone=self.alone)

    def shown(self, window: Window, frame: Tensor) -> Tensor:
        """Fill `frame` with the input of the model for a window, and return it."""
        path = window.path
        y, x = path.down[window.row].start, path.across[window.column].start
        (height, width), size = path.sides, path.size
        if path.turned:
            y, x, height, width, size = x, y, width, height, (size[1], size[0])
        if size == self.size:
            pixels = self.pixels[0, :, y : y + height, x : x + width]
        elif path.turned:
            pixels = self._strip(size, 2, x, width)[:, y : y + height]
        else:
            pixels = self._strip(size, 1, y, height)[:, :, x : x + width]
        inner = frame[:, :height, :width]
        inner.copy_(pixels.flip(2) if path.mirrored else pixels)
        if pixels.dtype == torch.uint8:
            inner /= 255
        frame[:, height:] = frame[:, :height, width:] = GREY
        return frame

    def _strip(self, size: tuple[int, int], axis: int, start: int, length: int) -> Tensor:
        """Return rows or columns of the image resized to `size`; only the last ones are cached."""
        if self.strip_of != (size, start):
            whole = F.interpolate(self.pixels.float() / 255, size, mode="bilinear", align_corners=False)[0]
            self.strip, self.strip_of = whole.narrow(axis, start, length).clone(), (size, start)
        return self.strip

    def take(self, window: Window, logits: Tensor) -> None:
        """Add the logits of a window (classes, side, side); decide the pixels that are complete."""
        path = window.path
        height, width = path.sides[::-1] if path.turned else path.sides
        logits = logits[:, :height, :width]
        logits = logits.flip(2) if path.mirrored else logits
        sums = path.add(window.row, window.column, logits.mT if path.turned else logits)
        if self.alone and path.plain:  # dividing by the number of windows would not change the argmax
            self._decide_window(window, sums)
        else:
            self.bands.height = max(1, isqrt(SQUARE_VALUES // len(logits)))
            for means, first, left in path.final(window.row, window.column, sums, self.bands.height):
                if self.alone:
                    self._decide(first, left, *first_largest(means))
                else:
                    self.bands.add(means.softmax(0), first, left)
        self.open -= 1
        if not self.alone and window.column + 1 == len(path.across):
            self.ready[path] = path.down[window.row].last
            for band, first in self.bands.before(min(self.ready.values())):
                self._decide(first, 0, *first_largest(band))

    def _decide_window(self, window: Window, sums: WindowSums) -> None:
        down, across = window.path.down[window.row], window.path.across[window.column]
        final = slice(down.done - down.start), slice(across.done - across.start)
        classes, largest = (found[final] for found in first_largest(sums))
        self._decide(down.start, across.start, classes, largest)

    def _decide(self, first: int, left: int, classes: Tensor, largest: Tensor) -> None:
        """Write classes into the prediction, from row `first` and column `left` on."""
        _require_finite(largest)
        self.target[first : first + classes.shape[0], left : left + classes.shape[1]] = classes.cpu().numpy()


def _require_finite(largest: Tensor) -> None:
    if not bool(torch.isfinite(largest.sum())):
        raise EvaluationError("the model returned NaN or infinite logits", fix="check its weights")


class Stream(Generic[T]):
    """Segments a sequence of images; windows of different images share batches of exactly the runner's batch size.

    Each image has a tag. Predictions are returned with their tags, in order, some images later. `decided` counts the
    windows of all images that have been returned.
    """

    def __init__(self, runner: Runner, windowing: Windowing) -> None:
        self.runner, self.windowing = runner, windowing
        self.decided = 0
        self._pictures: deque[tuple[T, _Picture]] = deque()
        self._waiting: deque[tuple[_Picture, Window]] = deque()

    def put(self, tag: T, image: NDArray[np.uint8]) -> list[tuple[T, Prediction]]:
        """Queue an image, run all full batches, and return the predictions that are complete."""
        picture = _Picture(image, self.windowing, self.runner.device)
        self._pictures.append((tag, picture))
        self._waiting.extend((picture, window) for window in picture.windows)
        while len(self._waiting) >= self.runner.batch_size:
            self._run()
        return self._decided()

    def flush(self) -> list[tuple[T, Prediction]]:
        """Run the remaining windows and return the remaining predictions."""
        while self._waiting:
            self._run()
        return self._decided()

    def _run(self) -> None:
        side = self.windowing.window
        batch = [self._waiting.popleft() for _ in range(min(self.runner.batch_size, len(self._waiting)))]
        frames = torch.empty((len(batch), 3, side, side), device=self.runner.device)
        for (picture, window), frame in zip(batch, frames, strict=True):
            picture.shown(window, frame)
        logits = self.runner.logits(frames).detach()
        EVERY_PIXEL.require(logits, frames)
        if all(picture.alone and window.path.disjoint for picture, window in batch):
            self._decide(batch, logits)
            return
        for (picture, window), own in zip(batch, logits, strict=True):
            picture.take(window, own)

    def _decide(self, batch: list[tuple[_Picture, Window]], logits: Tensor) -> None:
        """Decide a whole batch of windows that do not overlap: each alone determines the classes of its pixels."""
        classes, largest = first_largest(logits.movedim(1, 0))
        _require_finite(largest)
        for (picture, window), own in zip(batch, classes.cpu().numpy(), strict=True):
            y, x = window.path.down[window.row].start, window.path.across[window.column].start
            height, width = window.path.sides
            picture.prediction[y : y + height, x : x + width] = own[:height, :width]
            picture.open -= 1

    def _decided(self) -> list[tuple[T, Prediction]]:
        found = []
        while self._pictures and not self._pictures[0][1].open:
            tag, picture = self._pictures.popleft()
            self.decided += len(picture.windows)
            found.append((tag, picture.prediction))
        return found
