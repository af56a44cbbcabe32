"""A batch of pictures of one size is seen through windows side by side, and its logits can be differentiated.

The same windows, filling and means as in `windows`, where pictures come one by one and hold no graph: with z_k(p) the
logits of window k at pixel p and K(p) the windows that see it, z(p) = 1/|K(p)| sum_{k in K(p)} z_k(p).
"""

from collections.abc import Callable

from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.types import Images, Logits

GREY = 0.5  # what a picture smaller than a window is filled up with


def starts(length: int, window: int, stride: int) -> list[int]:
    """Where windows start along an axis: the last one ends where the axis does.

    >>> starts(1000, 512, 400)
    [0, 400, 488]
    """
    last = max(length - window, 0)
    return [*range(0, last, stride), last]


def through_windows(look: Callable[[Images], Logits], images: Images, window: int) -> Logits:
    """Return mean logits, (batch, classes, height, width); `look` is shown (batch, 3, window, window) at a time."""
    height, width = images.shape[2:]
    filled = F.pad(images, (0, max(window - width, 0), 0, max(window - height, 0)), value=GREY)
    places = [
        (slice(y, y + window), slice(x, x + window))
        for y in starts(filled.shape[2], window, window)
        for x in starts(filled.shape[3], window, window)
    ]
    first = look(filled[:, :, *places[0]])
    if len(places) == 1:
        return first[:, :, :height, :width]
    total, seen = first.new_zeros(*first.shape[:2], *filled.shape[2:]), first.new_zeros(filled.shape[2:])
    for number, place in enumerate(places):
        total[:, :, *place] += look(filled[:, :, *place]) if number else first
        seen[place] += 1
    return (total / seen)[:, :, :height, :width]
