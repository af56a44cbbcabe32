"""Which measurements are made on which data: the claims on one source, or the study's scripts, each on its own images.

`corrected` is the default. `saritas2025` is literal: Sarıtaş & Yıldız (2025), arXiv:2505.07908, with its own choice of
images, its resizing, and ImageNet's mean and deviation for every model.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.request import View
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.models.source import stated_view
from robustbench_kpca.study.diagnostics import CLAIMS, CORRECTED, SARITAS
from robustbench_kpca.study.diagnostics.claims import Claim
from robustbench_kpca.study.diagnostics.saritas2025 import IMAGES, STUDY
from robustbench_kpca.study.diagnostics.sources import ImageSource


@dataclass(frozen=True)
class Procedure:
    """Measurements by name, each with its data. A measurement on fewer images than another has a source of its own."""

    name: str
    claims: Mapping[str, Claim]
    sources: Mapping[str, ImageSource]

    def by_source(self) -> list[tuple[ImageSource, dict[str, Claim]]]:
        """Return each source once, largest first, with the claims measured on it."""
        claims_of: dict[int, tuple[ImageSource, dict[str, Claim]]] = {}
        for name, claim in self.claims.items():
            source = self.sources[name]
            claims_of.setdefault(id(source), (source, {}))[1][name] = claim
        return sorted(claims_of.values(), key=lambda pair: -pair[0].info().n)


def corrected(source: ImageSource, claims: Sequence[str] | None = None) -> Procedure:
    """Return the claims, by default all, on one source."""
    names = CLAIMS.names() if claims is None else claims
    return Procedure(CORRECTED, {name: CLAIMS.get(name) for name in names}, dict.fromkeys(names, source))


def study_of_images(samples: Samples, claims: Sequence[str] | None = None, *, most: int, seed: int = 0) -> Procedure:
    """Return the study's measurements on images.

    Each takes its own number of images (100, 25, 1 and 1), as `random.seed(seed)` and `random.sample` choose them from
    the sorted files.

    Args:
        samples: all images, loaded with `study_view`.
        claims: some of the measurements; by default all.
        most: takes at most this many images; below 100 this departs from the study.
        seed: 0 in the study.

    Raises:
        BadInputError: an unknown measurement, or too few images.
    """
    order = sorted(range(len(samples)), key=lambda number: samples.ids[number].split("/"))
    members = {name: STUDY.get(name) for name in (IMAGES if claims is None else claims)}
    numbers = {name: min(IMAGES.get(name, most), most) for name in members}
    if max(numbers.values()) > len(order):
        problem = f"{len(order)} images for a measurement on {max(numbers.values())}"
        raise BadInputError(problem, fix=f"give more, or --images {len(order)}")
    by_number = {
        n: ImageSource(samples.take([order[i] for i in random.Random(seed).sample(range(len(order)), n)]))
        for n in sorted(set(numbers.values()))
    }
    return Procedure(SARITAS, members, {name: by_number[number] for name, number in numbers.items()})


def study_view(model: nn.Module) -> View | None:
    """Return the study's resizing to the size that a model states: squashed by bilinear interpolation, not cropped."""
    stated = stated_view(model)
    return None if stated is None else View(stated.size, crop=1.0, interpolation="bilinear", squash=True)


def normalise_as_study(model: nn.Module) -> nn.Module:
    """Give a model that normalises inside ImageNet's mean and deviation, also where its own are 0.5; return it.

    Raises:
        BadInputError: the model does not normalise inside, or in another way.
    """
    mean, std = getattr(model, "pixel_mean", None), getattr(model, "pixel_std", None)
    if not isinstance(mean, torch.Tensor) or not isinstance(std, torch.Tensor):
        raise BadInputError(
            f"{type(model).__name__} does not normalise images inside",
            expected="a timm model, or one of `rbk list models`",
        )
    for buffer, values in ((mean, IMAGENET_DEFAULT_MEAN), (std, IMAGENET_DEFAULT_STD)):
        buffer.copy_(torch.tensor(values).view_as(buffer))
    return model
