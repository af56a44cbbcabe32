"""One image segmented by a model, as the windows of an evaluation show it, and a model of known answers."""

import torch
from torch import nn

from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca._engine.inference.sliding_window import EVERY_PIXEL, Stream, Windowing


def segment(model, image, *, window=0, stride=0, resize="none"):
    """Classes of every pixel, int16; `model` is a segmenter or its runner."""
    inner = model.model if isinstance(model, Runner) else model
    windowing = Windowing.of(inner, window, stride, resize)
    if not isinstance(model, Runner):
        model = Runner(model, 16, torch.device("cpu"), presentation=EVERY_PIXEL)
    stream = Stream[None](model, windowing)
    ((_, prediction),) = stream.put(None, image) + stream.flush()
    return prediction


class PerPixel(nn.Module):
    """Classes by logits (0, w . x + b) of every pixel by itself: what flips is known in closed form."""

    def __init__(self, bias=0.0, *, blind=False, classes=2):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.tensor([0.5, -0.3, 0.2])), bias
        self.blind, self.classes = blind, classes
        self.eval()

    def forward(self, x):
        x = x.detach() + 0 * x if self.blind else x
        score = torch.einsum("bchw,c->bhw", x, self.weight) + self.bias
        return torch.stack([torch.zeros_like(score)] * (self.classes - 1) + [score], 1)
