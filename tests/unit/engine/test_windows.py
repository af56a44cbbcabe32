"""Every pixel is seen, and what windows say together is what the whole picture would have said."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from segmenting import segment
from torch import nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca._engine.inference.sliding_window import (
    Stream,
    Windowing,
    batch_size_for,
    first_largest,
    starts,
    through_windows,
)


class Pixelwise(nn.Module):
    """Five classes by colour alone: position-independent, so windows and whole pictures must agree to the bit."""

    classes, window = 5, 8

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randn(5, 3, generator=torch.Generator().manual_seed(0)))
        self.seen = []
        self.eval()

    def forward(self, x):
        self.seen.append(tuple(x.shape))
        return torch.einsum("kc,bchw->bkhw", self.weight, x)


class Positioned(Pixelwise):
    """Adds the column and row within the window: what overlap does can be seen."""

    def forward(self, x):
        down, across = torch.meshgrid(*(torch.linspace(-1, 1, n) for n in x.shape[2:]), indexing="ij")
        return super().forward(x) + torch.stack([down, across, -down, -across, down * across])


def picture(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@settings(deadline=None, max_examples=60)
@given(length=st.integers(1, 90), window=st.integers(1, 30), stride=st.integers(1, 30))
def test_windows_cover_an_axis_and_stay_inside(length, window, stride):
    stride = min(stride, window)
    places = starts(length, window, stride)
    assert places[0] == 0
    assert places == sorted(set(places))
    assert {pixel for place in places for pixel in range(place, place + window)} >= set(range(length))
    assert places[-1] + window == max(length, window)
    assert all(after - before <= stride for before, after in pairwise(places))


@pytest.mark.parametrize("size", [(21, 34), (34, 21)])
def test_batches_change_no_prediction(size):
    model, image = Positioned(), picture(*size)
    windowing = Windowing(8, 6, "short-side")
    found = []
    for batch_size in (1, 3, 64):
        stream = Stream[None](Runner(model, batch_size, torch.device("cpu")), windowing)
        found += [prediction for _, prediction in stream.put(None, image) + stream.flush()]
    assert len(found) == 3
    assert all(np.array_equal(prediction, found[0]) for prediction in found)
    assert np.array_equal(segment(model, image, stride=6, resize="short-side"), found[0])


def test_what_a_model_returns_is_not_written_to():
    """One that always returns the same tensor answers the same to every window."""

    class Fixed(nn.Module):
        classes, window = 5, 8

        def __init__(self):
            super().__init__()
            self.answer = nn.Parameter(torch.randn(1, 5, 8, 8, generator=torch.Generator().manual_seed(1)))

        def forward(self, x):
            return self.answer

    model = Fixed().eval()
    before = model.answer.detach().clone()
    image = picture(11, 13)
    found = segment(Runner(model, 1, torch.device("cpu")), image, stride=3)
    assert torch.equal(model.answer, before)
    expected = whole(image, image.shape[:2], 8, 3, lambda x: before)
    assert np.array_equal(found, expected.argmax(0).numpy())


def test_pictures_share_batches_of_one_size_and_come_back_in_order():
    model = Positioned()
    stream = Stream(Runner(model, 4, torch.device("cpu")), Windowing(8, 5))
    pictures = {number: picture(5 + 3 * number, 30 - 2 * number, number) for number in range(9)}
    found = [pair for number, image in pictures.items() for pair in stream.put(number, image)] + stream.flush()
    assert [number for number, _ in found] == list(pictures)
    assert set(model.seen) == {(4, 3, 8, 8)}
    windows = sum(
        len(starts(max(n, 8), 8, 5)) * len(starts(max(m, 8), 8, 5)) for n, m, _ in map(np.shape, pictures.values())
    )
    assert stream.decided == windows
    assert len(model.seen) == -(-windows // 4)
    for number, prediction in found:
        assert np.array_equal(prediction, segment(model, pictures[number], stride=5))


def test_equal_classes_many_classes_and_windows_that_meet():
    scores = torch.randint(0, 3, (400, 6, 7), generator=torch.Generator().manual_seed(0)).float()
    classes, largest = first_largest(scores)
    assert torch.equal(largest, scores.amax(0))
    assert np.array_equal(classes.numpy(), scores.numpy().argmax(0))
    scores[399, 2, 2] = 9
    assert int(first_largest(scores)[0][2, 2]) == 399
    with pytest.raises(BadInputError, match="0 < stride <= window"):
        segment(Pixelwise(), picture(8, 8), stride=9)
    with pytest.raises(BadInputError, match="window"):
        segment(nn.Identity().eval(), picture(8, 8))
    assert batch_size_for(150, 512, 64) == 1
    assert batch_size_for(8, 64, 64) == 64


class Odd(Pixelwise):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, x):
        return self.answer(super().forward(x))


@pytest.mark.parametrize(
    ("answer", "error", "match"),
    [
        (lambda z: z.mean((2, 3)), BadInputError, r"\(1, 5\).*every pixel|\(16, 5\)|\(1, 5\)"),
        (lambda z: z[:, :, ::2], BadInputError, r"\(16, 5, 4, 8\)"),
        (lambda z: torch.where(z == z.amax(), torch.nan, z), EvaluationError, "NaN or infinite logits"),
    ],
)
def test_what_is_no_segmenter_is_refused(answer, error, match):
    with pytest.raises(error, match=match):
        segment(Odd(answer), picture(8, 8))


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


def whole(image, size, window, stride, model=MODEL):
    height, width = size
    x = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
    x = F.interpolate(x, size, mode="bilinear", align_corners=False) if tuple(x.shape[2:]) != size else x
    canvas = torch.full((1, 3, max(height, window), max(width, window)), 0.5)
    canvas[:, :, :height, :width] = x
    classes = model(canvas[:, :, :window, :window]).shape[1]
    total, count = torch.zeros(1, classes, *canvas.shape[2:]), torch.zeros(canvas.shape[2:])
    for top in places(canvas.shape[2], window, stride):
        for left in places(canvas.shape[3], window, stride):
            part = (slice(top, top + window), slice(left, left + window))
            total[:, :, *part] += model(canvas[:, :, *part])
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
