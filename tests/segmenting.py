"""One image segmented by a model, as the windows of an evaluation show it."""

import torch

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
