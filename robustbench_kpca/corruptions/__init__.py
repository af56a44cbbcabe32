"""The common corruptions, one file each (Hendrycks & Dietterich, 2019); as evaluated they are TOML in `/corruptions`.

`corrupt` is seeded per image, so a picture does not depend on order, batch or worker.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.randomness import generator, sample_key
from robustbench_kpca.registry import Family
from robustbench_kpca.scenario import check_severity

CORRUPTIONS = Family("corruption", __name__, "CORRUPTION")
Pixels = NDArray[np.uint8]


def corrupt_one(image: Pixels, name: str, severity: int, seed: int, sample: str, profile: str) -> Pixels:
    """Corrupt one (height, width, 3) image; see `corrupt`."""
    corruption = CORRUPTIONS.get(name)
    rng = generator(sample_key(seed, f"{name}/{severity}", sample))
    moved = corruption(image / 255.0, corruption.parameters[profile][severity - 1], rng)
    levels: Pixels = (np.clip(moved, 0, 1) * 255).astype(np.uint8)  # truncates, as the released data sets do
    return levels


def require_profile(name: str, profile: str) -> None:
    """Refuse an unknown corruption, or a parameter set that it does not have."""
    known = sorted(CORRUPTIONS.get(name).parameters)
    if profile not in known:
        raise BadInputError(f"corruption '{name}' has no profile '{profile}'", fix=f"known: {', '.join(known)}")


def corrupt(
    images: Pixels,
    name: str,
    severity: int,
    seed: int = 0,
    ids: Sequence[str] | None = None,
    profile: str = "imagecorruptions",
) -> Pixels:
    """Corrupt a batch of images.

    Source: Hendrycks & Dietterich (2019), "Benchmarking Neural Network Robustness to Common Corruptions and
    Perturbations", arXiv:1903.12261.

    Args:
        images: uint8, shape (batch, height, width, 3), RGB.
        name: one of `rbk list corruptions`.
        severity: 1 (mild) to 5.
        seed: of all randomness, together with name, severity and the image's id.
        ids: one per image, naming its random stream; by default its position: "0", "1", ...
        profile: `imagecorruptions` (the ImageNet-C parameters, at any size) or `cifar_c` (those for 32 px).

    Returns:
        uint8, the same shape.

    Raises:
        BadInputError: wrong dtype or shape, unknown name or profile, severity outside 1 to 5.

    """
    images = np.asarray(images)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3 or 0 in images.shape:
        raise BadInputError(
            f"images of dtype {images.dtype} and shape {images.shape}",
            expected="uint8 of shape (batch, height, width, 3), none of them 0",
        )
    check_severity(severity)
    require_profile(name, profile)
    ids = [str(index) for index in range(len(images))] if ids is None else ids
    if len(ids) != len(images):
        raise BadInputError(f"{len(ids)} ids for {len(images)} images", expected="one id per image")
    pairs = zip(images, ids, strict=True)
    return np.stack([corrupt_one(image, name, severity, seed, sample, profile) for image, sample in pairs])
