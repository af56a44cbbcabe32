"""Windows and sizes drawn at random: as a picture would be segmented that is held whole."""

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from segmenting import segment
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._engine.inference.sliding_window import through_windows


class Near(torch.nn.Module):
    """Four classes by the neighbourhood of a pixel, so that edges of windows and what fills them are seen."""

    classes = 4

    def __init__(self):
        super().__init__()
        weight = torch.rand(4, 3, 3, 3, generator=torch.Generator().manual_seed(0))
        self.weight = torch.nn.Parameter(weight - weight.mean((1, 2, 3), keepdim=True))

    def forward(self, x):
        return 4 * F.conv2d(x, self.weight, padding=1)


MODEL = Near().eval()


def places(length, window, stride):
    """Where Segmenter's program puts windows: 0, stride, ..., as long as they fit, and one flush with the end."""
    found = list(range(0, length - window + 1, stride))
    return found if found[-1] == length - window else [*found, length - window]


def whole(image, size, window, stride):
    height, width = size
    x = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
    x = F.interpolate(x, size, mode="bilinear", align_corners=False) if tuple(x.shape[2:]) != size else x
    canvas = torch.full((1, 3, max(height, window), max(width, window)), 0.5)
    canvas[:, :, :height, :width] = x
    total = torch.zeros(1, 4, *canvas.shape[2:])
    count = torch.zeros(canvas.shape[2:])
    for top in places(canvas.shape[2], window, stride):
        for left in places(canvas.shape[3], window, stride):
            part = (slice(top, top + window), slice(left, left + window))
            total[:, :, *part] += MODEL(canvas[:, :, *part])
            count[part] += 1
    logits = (total / count)[:, :, :height, :width]
    return F.interpolate(logits, image.shape[:2], mode="bilinear", align_corners=False)[0]


@settings(deadline=None, max_examples=40)
@given(
    size=st.tuples(st.integers(1, 36), st.integers(1, 36)),
    window=st.integers(6, 20),
    share=st.floats(0.3, 1),
    resize=st.sampled_from(["none", "short-side"]),
    seed=st.integers(0, 100),
)
@torch.no_grad()
def test_a_picture_is_segmented_as_if_it_were_held_whole(size, window, share, resize, seed):
    assume(resize == "none" or max(size) / min(size) * window < 100)
    stride = max(1, round(share * window))
    image = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    found = segment(MODEL, image, window=window, stride=stride, resize=resize)
    base = window / min(size) if resize == "short-side" else 1.0
    scores = whole(image, tuple(max(1, round(side * base)) for side in size), window, stride)
    best = scores.topk(2, 0).values
    clear = (best[0] - best[1] > 1e-4).numpy()
    assert np.array_equal(found[clear], scores.argmax(0).numpy()[clear])


@settings(deadline=None, max_examples=15)
@given(size=st.tuples(st.integers(1, 30), st.integers(1, 30)), window=st.integers(3, 12), seed=st.integers(0, 100))
def test_a_batch_has_the_logits_of_windows_side_by_side_and_their_slope(size, window, seed):
    images = np.random.default_rng(seed).integers(0, 256, (2, *size, 3), dtype=np.uint8)
    x = (torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255).requires_grad_()
    logits = through_windows(MODEL, x, window)
    expected = torch.stack([whole(image, size, window, window) for image in images])
    assert torch.allclose(logits, expected, atol=1e-5)
    (slope,) = torch.autograd.grad(logits.square().sum(), x)
    step = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) - 0.5
    with torch.no_grad():
        ahead, behind = (
            through_windows(MODEL, x + side * step, window).double().square().sum() for side in (0.01, -0.01)
        )
    assert torch.allclose((ahead - behind) / 0.02, (slope.double() * step).sum(), rtol=1e-2, atol=1e-2)
