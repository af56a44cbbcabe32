"""Shared by several corruptions: conversion to 8-bit levels, and reproducible normal noise."""

import math
from typing import Any, TypeVar

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
T = TypeVar("T")
Layer = NDArray[np.float32] | NDArray[np.float64]

LEVELS: NDArray[np.float64] = np.arange(256) / 255.0
"""Each 8-bit level divided by 255, as the references do first."""
ROUNDING = 4 * 255  # bound on the rounding error of a weighted mean of levels, in units of the last place of 1


def parameters_of(imagenet: tuple[T, ...], *, cifar: tuple[T, ...]) -> dict[str, tuple[T, ...]]:
    """Return the parameters of severities 1 to 5 by profile, where pictures of any size have those of 224 pixels."""
    return {"imagenet_c": imagenet, "imagecorruptions": imagenet, "cifar_c": cifar}


def truncate(image: NDArray[Any]) -> Pixels:
    """Clip to [0, 255] and drop the fraction, as for the released data sets (`np.uint8` of a float)."""
    levels: Pixels = np.clip(image, 0, 255).astype(np.uint8)
    return levels


def settle(blurred: Layer, flat: Pixels) -> Pixels:
    """Truncate blurred levels (none negative); where all neighbours have the same level v, store `flat[v]`.

    There the exact result is the integer v, and the rounding errors of the reference decide whether it stores v or
    v - 1. They are the same at all such pixels, for example throughout a clear sky.
    """
    margin = ROUNDING * float(np.finfo(blurred.dtype).eps)
    levels = (blurred + blurred.dtype.type(margin)).astype(np.uint8)
    drop = cv2.LUT(levels, (np.arange(256) - flat).astype(np.uint8))
    return np.asarray(levels - np.bitwise_and(drop, blurred - levels < margin), np.uint8)


def normal(shape: tuple[int, ...], mean: float, deviation: float, rng: Generator) -> NDArray[np.float32]:
    """Draw normal numbers with OpenCV's generator; each half of the rows has a 31-bit seed drawn from `rng`.

    OpenCV's generator is global to the thread, so every call seeds it. It fills only the first channel of a
    multi-channel array (OpenCV 5.0), so the array passed has no channels.
    """
    numbers = np.empty((shape[0], math.prod(shape[1:])), np.float32)
    for part, seed in zip(np.array_split(numbers, 2), rng.integers(1, 2**31, 2), strict=True):
        if part.size:
            cv2.setRNGSeed(int(seed))
            cv2.randn(part, np.array([mean]), np.array([deviation]))
    return numbers.reshape(shape)
