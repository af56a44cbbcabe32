"""Normalisation inside models, so that all models take images in [0, 1]."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


def normalise_inside(model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> nn.Module:
    """Make `model` compute f((x - mean) / std); return it.

    The constants are non-persistent buffers, so that checkpoints have the authors' keys only.
    """
    model.register_buffer("pixel_mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
    model.register_buffer("pixel_std", torch.tensor(std).view(-1, 1, 1), persistent=False)
    model.register_forward_pre_hook(_normalise)
    return model


def _normalise(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    images, *rest = inputs
    return ((images - model.pixel_mean) / model.pixel_std, *rest)
