"""The input space of an attack: pixels in [0, 1], or the normalised inputs of the model."""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.types import Images


@dataclass(frozen=True)
class InputSpace:
    """Coordinates u = (x - mean) / std of pixels x. With mean and std `None`, u = x exactly."""

    mean: Float[Tensor, "channel 1 1"] | None = None
    std: Float[Tensor, "channel 1 1"] | None = None

    @classmethod
    def of(cls, model: nn.Module, name: Literal["pixel", "normalised", "signal", "word"]) -> "InputSpace":
        """Return the space called `name`.

        Raises:
            BadInputError: normalised space for a model that does not expose its mean and standard deviation.
        """
        if name != "normalised":  # pixels in [0, 1], signals in units that the data have, or words
            return cls()
        mean, std = (getattr(model, f"pixel_{part}", None) for part in ("mean", "std"))
        if not isinstance(mean, Tensor) or not isinstance(std, Tensor):
            raise BadInputError(
                "the protocol uses the normalised space, but the normalisation of the model is unknown",
                expected="buffers pixel_mean and pixel_std on the model",
                fix="use robustbench_kpca.models.source.normalise_inside, or a protocol in pixel space",
            )
        return cls(mean.detach(), std.detach())

    def enter(self, pixels: Images) -> Images:
        """Map pixels to this space."""
        return pixels if self.mean is None else (pixels - self.mean.to(pixels)) / self._std(pixels)

    def leave(self, x: Float[Tensor, "*batch channel height width"]) -> Float[Tensor, "*batch channel height width"]:
        """Map this space to pixels: a batch, or one image."""
        return x if self.mean is None else x * self._std(x) + self.mean.to(x)

    def pull_back(self, gradient: Images) -> Images:
        """Turn a gradient with respect to pixels into one with respect to this space."""
        return gradient if self.mean is None else gradient * self._std(gradient)

    def _std(self, like: Tensor) -> Tensor:
        assert self.std is not None
        return self.std.to(like)
