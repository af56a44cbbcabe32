"""The forms of a sample: picture, signal, tokens, or words of a running text. The loops are the same for all of them.

All forms travel as float tensors (channels, height, width), so that loaders, runners and attacks have one shape. A
signal and a sequence of tokens or words are one high: (channels, 1, length) and (1, 1, length). Tokens and words are
whole numbers, which float32 holds exactly up to 2^24.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError


class Form(ABC):
    """What a sample is made of.

    Attributes:
        name: name of several samples, in words.
        profiles: the parameter sets of the corruptions that are defined for it.
        spaces: the spaces of the attacks that are defined for it; empty if no attack by small changes is.
        box: whether values lie in [0, 1].
    """

    name: ClassVar[str]
    profiles: ClassVar[tuple[str, ...]]
    spaces: ClassVar[tuple[str, ...]]
    box: ClassVar[bool] = False

    @abstractmethod
    def check(self, batch: Tensor) -> None:
        """Refuse a batch of values that the form does not have.

        Raises:
            BadInputError: a wrong type, shape or value.
        """

    @abstractmethod
    def array(self, sample: Any) -> NDArray[Any]:
        """Return what a corruption changes."""

    @abstractmethod
    def tensor(self, sample: Any) -> Tensor:
        """Return what a model is shown; `sample` is an item of a data set, or what a corruption returned."""


class Pictures(Form):
    """Images: values in [0, 1]; corruptions change uint8 (height, width, 3)."""

    name = "images"
    profiles = ("imagenet_c", "imagecorruptions", "cifar_c", "imagenet_c_bar", "imagenet_3dcc")
    spaces = ("pixel", "normalised")
    box = True

    def check(self, batch: Tensor) -> None:
        """Refuse values outside [0, 1]."""
        _require_floats(batch, "images", "[0, 1]")
        low, high = torch.stack(batch.aminmax()).tolist()
        if low < 0 or high > 1:
            raise BadInputError(
                f"images range from {low:.3g} to {high:.3g}",
                expected="values in [0, 1]",
                fix="divide uint8 images by 255, and subtract mean and divide by std inside the model",
            )

    def array(self, sample: Any) -> NDArray[np.uint8]:
        """Return uint8 (height, width, 3); float values in [0, 1] are rounded to the nearest of 256 levels."""
        if not isinstance(sample, Tensor):
            return np.asarray(sample, np.uint8)
        if len(sample) != 3:
            raise BadInputError(f"corruption of images with {len(sample)} channels", expected="3 channels, RGB")
        levels = (sample.clamp(0, 1) * 255).round().to(torch.uint8)
        return levels.permute(1, 2, 0).contiguous().numpy()

    def tensor(self, sample: Any) -> Tensor:
        """Convert uint8 (height, width, 3) to float32 (3, height, width) in [0, 1]; return a float tensor unchanged."""
        if isinstance(sample, Tensor):
            return sample
        return torch.from_numpy(np.ascontiguousarray(sample)).permute(2, 0, 1).float() / 255


class Signals(Form):
    """Time series in units of the training part's standard deviation; corruptions change (channels, length).

    There is no box: any finite value is a signal.
    """

    name = "signals"
    profiles = ("signal",)
    spaces = ("signal",)

    def check(self, batch: Tensor) -> None:
        """Refuse NaN and infinite values."""
        _require_floats(batch, "signals", "the real numbers")

    def array(self, sample: Any) -> NDArray[np.float64]:
        """Return float64 (channels, length)."""
        values: NDArray[np.float64] = sample[:, 0].double().numpy()
        return values

    def tensor(self, sample: Any) -> Tensor:
        """Return float32 (channels, 1, length)."""
        if isinstance(sample, Tensor):
            return sample
        return torch.from_numpy(np.ascontiguousarray(sample, np.float32))[:, None]


class Tokens(Form):
    """Words by their number in a vocabulary; corruptions change int64 (length,). Small changes have no meaning."""

    name = "tokens"
    profiles = ("tokens",)
    spaces: ClassVar[tuple[str, ...]] = ()

    def check(self, batch: Tensor) -> None:
        """Refuse values that are no whole numbers of at least 0."""
        _require_floats(batch, "tokens", "whole numbers")
        if bool((batch < 0).any()) or not torch.equal(batch, batch.round()):
            raise BadInputError("tokens that are no whole numbers of at least 0", expected="numbers of a vocabulary")

    def array(self, sample: Any) -> NDArray[np.int64]:
        """Return int64 (length,)."""
        tokens: NDArray[np.int64] = sample[0, 0].long().numpy()
        return tokens

    def tensor(self, sample: Any) -> Tensor:
        """Return float32 (1, 1, length)."""
        if isinstance(sample, Tensor):
            return sample
        return torch.from_numpy(np.ascontiguousarray(sample)).float()[None, None]


class Words(Tokens):
    """Consecutive words of a text by their number; every one is to be predicted. Attacks replace words by others.

    Corruptions change the whole text, not a sample: whether a word is replaced depends on its line.
    """

    name = "words of a text"
    profiles = ("words",)
    spaces = ("word",)


def _require_floats(batch: Tensor, name: str, values: str) -> None:
    if batch.ndim != 4 or batch.dtype not in (torch.float32, torch.float64):
        raise BadInputError(
            f"{name} of dtype {batch.dtype} and shape {tuple(batch.shape)}",
            expected=f"float32 or float64 of shape (batch, channels, height, width) in {values}",
        )
    if batch.numel() and not math.isfinite(float(batch.abs().amax())):  # NaN is passed on
        raise BadInputError(f"{name} contain NaN or infinite values", expected=f"values in {values}")


PICTURES, SIGNALS, TOKENS, WORDS = Pictures(), Signals(), Tokens(), Words()
