"""A picture of any size is classified pixel by pixel through windows of one size, in full batches, at its own size.

Source: Strudel, Garcia, Laptev & Schmid (2021), "Segmenter: Transformer for Semantic Segmentation", arXiv:2105.05633.
Along each axis of length n, windows of side w start at 0, s, 2s, ... (s the stride) and, the last, at n - w. With
z_k(p) the logits of window k at pixel p and K(p) the windows that see it,

    z(p) = 1/|K(p)| sum_{k in K(p)} z_k(p)                               logits are averaged where windows overlap
    prediction(p) = argmax_c sum_{scales, mirrored or not} softmax(resize z)_c(p)         probabilities across passes

where z is resized (bilinear) from the size that the windows saw to the picture's own; with one pass its softmax is left
out, which changes no argmax. Two things differ from the original: what is smaller than a window is padded (right and
bottom, mid-grey), not enlarged; and one pass of a resized picture resizes logits, as the original does, but row by row.
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

from robustbench_kpca.errors import BadInputError, EvaluationError
from robustbench_kpca.inference.runner import Presentation, Runner, call, device_for
from robustbench_kpca.inference.sliding_window._accumulate import Bands, Sums, first_largest
from robustbench_kpca.inference.sliding_window._schedule import Pass, Window, schedule
from robustbench_kpca.inference.sliding_window.tiles import GREY, starts

Prediction = NDArray[np.int16]
T = TypeVar("T")
BATCH_VALUES = 2**26  # logits of one batch: a quarter of a gigabyte
SQUARE_VALUES = 2**19  # logits resized at a time
EVERY_PIXEL = Presentation(
    call, lambda logits, x: logits.ndim == 4 and len(logits) == len(x) and logits.shape[2:] == x.shape[2:],
    expected="logits for every pixel: (batch, classes, height, width)",
    fix="for scenes with masks choose a segmenter, such as symvit_shapes",
)  # fmt: skip


@dataclass(frozen=True)
class Windowing:
    """How a picture is looked at.

    window: side of the windows, in pixels.
    stride: from one window to the next.
    scales: of the picture, one pass each.
    flip: whether each pass is also made of the mirrored picture.
    resize: `short-side`: the picture is resized (bilinear, ratio kept) so that its short side is a window's, before any
        scale; `none`: it is taken as it is.
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
                expected="0 < stride <= window, so that every pixel is seen, and scales above 0",
            )

    @classmethod
    def of(cls, model: nn.Module, window: int, stride: int, **how: object) -> "Windowing":
        """Fill in the model's own window where `window` is 0, and windows side by side where `stride` is 0."""
        side = window or own_window(model)
        if side < 1:
            raise BadInputError(
                f"a {type(model).__name__} that does not say at which window it was trained",
                fix="set window = 512, say",
            )
        return cls(side, stride or side, **how)  # type: ignore[arg-type]

    def sizes(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return the size of the picture in each pass, mirrored ones left out."""
        whole = self.window / min(height, width) if self.resize == "short-side" else 1.0
        return [(max(1, round(height * whole * scale)), max(1, round(width * whole * scale))) for scale in self.scales]


def own_window(model: nn.Module) -> int:
    """Return the side of the windows that a segmenter was trained at, 0 where it does not say."""
    side = getattr(model, "window", 0)
    return side if isinstance(side, int) and side > 0 else 0


def batch_size_for(classes: int, window: int, most: int) -> int:
    """Return how many windows are shown at once by default: so many that their logits take a quarter of a gigabyte."""
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
    """Classify every pixel of one picture.

    Args:
        model: a segmenter in evaluation mode, images in [0, 1] of shape (batch, 3, height, width) to logits (batch,
            classes, height, width); or what runs it.
        image: uint8, shape (height, width, 3).
        window: and everything else as in `Windowing`; 0 is the model's own window.
        stride: 0 is the window.
        scales: see there.
        flip: see there.
        resize: see there.

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
    """Return the window at the upper left of a picture: (3, window, window) in [0, 1]."""
    picture = _Picture(image, windowing, torch.device("cpu"))
    return picture.shown(picture.windows[0], torch.empty(3, windowing.window, windowing.window))


class _Picture:
    """A picture on its way: its windows in the order in which they are looked at, and what is known of its prediction.

    One pass is decided window by window. Of several, probabilities are summed in bands, which are decided and let go
    when every pass is through. Passes advance together, and along the picture's longer side: bands are few and short.
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
        """Fill `frame` with what the model is shown in a window, and return it."""
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
        """Return rows or columns of the picture resized to `size`; the last ones are remembered, others made again."""
        if self.strip_of != (size, start):
            whole = F.interpolate(self.pixels.float() / 255, size, mode="bilinear", align_corners=False)[0]
            self.strip, self.strip_of = whole.narrow(axis, start, length).clone(), (size, start)
        return self.strip

    def take(self, window: Window, logits: Tensor) -> None:
        """Add what the model says in a window (classes, side, side); decide what is complete."""
        path = window.path
        height, width = path.sides[::-1] if path.turned else path.sides
        logits = logits[:, :height, :width]
        logits = logits.flip(2) if path.mirrored else logits
        sums = path.add(window.row, window.column, logits.mT if path.turned else logits)
        if self.alone and path.plain:  # dividing by the number of windows changes no argmax
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

    def _decide_window(self, window: Window, sums: Sums) -> None:
        down, across = window.path.down[window.row], window.path.across[window.column]
        final = slice(down.done - down.start), slice(across.done - across.start)
        classes, largest = (found[final] for found in first_largest(sums))
        self._decide(down.start, across.start, classes, largest)

    def _decide(self, first: int, left: int, classes: Tensor, largest: Tensor) -> None:
        """Write down the classes from (first, left) on."""
        _require_finite(largest)
        self.target[first : first + classes.shape[0], left : left + classes.shape[1]] = classes.cpu().numpy()


def _require_finite(largest: Tensor) -> None:
    if not bool(torch.isfinite(largest.sum())):
        raise EvaluationError("the model returned NaN or infinite logits", fix="check its weights")


class Stream(Generic[T]):
    """Windows of many pictures, one after the other, in batches of exactly the runner's size.

    Each picture comes with a tag and its prediction comes back with it, in order, some pictures later. `decided` counts
    the windows of those that have come back.
    """

    def __init__(self, runner: Runner, windowing: Windowing) -> None:
        self.runner, self.windowing = runner, windowing
        self.decided = 0
        self._pictures: deque[tuple[T, _Picture]] = deque()
        self._waiting: deque[tuple[_Picture, Window]] = deque()

    def put(self, tag: T, image: NDArray[np.uint8]) -> list[tuple[T, Prediction]]:
        """Queue a picture, run every full batch, and return what is decided."""
        picture = _Picture(image, self.windowing, self.runner.device)
        self._pictures.append((tag, picture))
        self._waiting.extend((picture, window) for window in picture.windows)
        while len(self._waiting) >= self.runner.batch_size:
            self._run()
        return self._decided()

    def flush(self) -> list[tuple[T, Prediction]]:
        """Run what is left, and return it."""
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
        """Decide windows of which each is all that is said about its pixels: together, and where they lie."""
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
