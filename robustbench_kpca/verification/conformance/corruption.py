"""What every corruption of images promises: shape and range, any order, seeds, and an input that is left as it is."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from robustbench_kpca._core.randomness import generator
from robustbench_kpca.attacks.foreign import isolated
from robustbench_kpca.corruptions.shared.kernels import Pixels
from robustbench_kpca.verification.conformance.finding import Finding, checked, require

SIDE = (32, 40, 3)
SEVERITIES = range(1, 6)
Make = Callable[[Pixels, int, int], Any]
"""(image, severity, seed) to the corrupted image."""


def findings(corruption: Any) -> Iterator[Finding]:
    """Yield what was found of a corruption, under every profile that it has."""
    yield checked("every profile has five severities", partial(_has_five_severities, corruption))
    for profile in corruption.parameters:

        def make(image: Pixels, severity: int, seed: int, profile: str = profile) -> Any:
            return corruption.fast(image, corruption.parameters[profile][severity - 1], generator(seed))

        for promise, check in PROMISES.items():
            yield checked(f"{promise} ({profile})", partial(check, make))


def pictures() -> list[Pixels]:
    """Noise, a black picture and a white one."""
    noise = np.random.default_rng(0).integers(0, 256, SIDE, dtype=np.uint8)
    return [noise, np.zeros(SIDE, np.uint8), np.full(SIDE, 255, np.uint8)]


def _has_five_severities(corruption: Any) -> None:
    require(bool(corruption.parameters), "it has no profile")
    for profile, values in corruption.parameters.items():
        require(len(values) == len(SEVERITIES), f"profile '{profile}' has {len(values)}")


def keeps_shape(make: Make) -> None:
    """Require that an image keeps type and size, and that the one given is not written into."""
    for image in pictures():
        for severity in SEVERITIES:
            original = image.copy()
            new = make(image, severity, 3)
            require(isinstance(new, np.ndarray) and new.dtype == np.uint8, f"it returned {_kind(new)}, not uint8")
            require(new.shape == image.shape, f"{image.shape} became {new.shape}")
            require(np.array_equal(image, original), "it wrote into the image that it was given")


def is_seeded(make: Make) -> None:
    """Require that all random numbers come from the generator."""
    image = pictures()[0]
    for severity in SEVERITIES:
        twins = []
        for seed in (1, 2):
            with isolated(seed, torch.device("cpu")):
                twins.append(make(image.copy(), severity, 3))
        require(np.array_equal(twins[0], twins[1]), "the same seed made two images: it draws from a global generator")


def does_something(make: Make) -> None:
    """Require that a picture of noise changes."""
    image = pictures()[0]
    change = min(float(np.abs(make(image.copy(), severity, 3).astype(float) - image).mean()) for severity in SEVERITIES)
    require(change > 0, "at one severity the image stays as it is")


def _kind(value: Any) -> str:
    return str(getattr(value, "dtype", type(value).__name__))


PROMISES: dict[str, Callable[[Make], None]] = {
    "images keep shape and type, and the input is left as it is": keeps_shape,
    "it is determined by its seed": is_seeded,
    "it does something": does_something,
}
