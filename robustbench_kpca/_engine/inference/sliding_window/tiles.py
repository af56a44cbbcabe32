"""Sliding-window logits of a batch of images of one size, differentiable with respect to the images.

Windows, padding and averaging are those of `windows`, which handles single images without gradients. With z_k(p) the
logits of window k at pixel p and K(p) the windows that contain p, z(p) = 1/|K(p)| sum_{k in K(p)} z_k(p).
"""

from collections.abc import Callable

from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.types import Images, Logits

GREY = 0.5  # padding value for images smaller than a window


def starts(length: int, window: int, stride: int) -> list[int]:
    """Return where windows start along an axis; the last window ends at the end of the axis.

    >>> starts(1000, 512, 400)
    [0, 400, 488]
    """
    last = max(length - window, 0)
    return [*range(0, last, stride), last]


def through_windows(model: Callable[[Images], Logits], images: Images, window: int) -> Logits:
    """Return mean logits, (batch, classes, height, width); `model` is called on (batch, 3, window, window)."""
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
