"""What counts of votes prove: how far an image can be changed before the answer of a model changes. No torch.

A model states its proof in its configuration, a record has the counts, so that radii follow from a record alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from math import comb, floor
from statistics import NormalDist
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field

from robustbench_kpca._core.strict import STRICT, validate

LARGEST = 4096
"""Pixels of the longest side of an image."""
Side = Annotated[int, Field(ge=1, le=LARGEST, strict=True)]
Shade = Annotated[float, Field(ge=0, le=1)]
DECIMALS = 10**6
"""Radii in L2 are rounded down to multiples of one part in this many."""


class Proof(BaseModel, ABC):
    """How a model answers, and what follows from it; the fields are options of the model.

    A patch of p x p pixels is hidden, or touches few of the views that vote. So votes bound what it can change.
    """

    model_config = STRICT
    name: ClassVar[str]
    norm: ClassVar[str]
    option: ClassVar[str]  # option of a model that chooses this proof
    drawn: ClassVar[bool] = False

    @abstractmethod
    def radius(self, votes: int, rival: int, eps: float, alpha: float) -> float:
        """Return the radius; 0 where nothing is proven, -1 where the model abstains.

        Args:
            votes: of the class that is answered.
            rival: of the strongest other class, and one more where that is the first of the two: it wins ties. Of
                a drawn proof, of all others.
            eps: of patches, their number.
            alpha: of a drawn proof, the probability that it is wrong.
        """

    def views(self, side: int) -> int:  # noqa: ARG002
        """Return how many views of an image of side x side pixels vote; of a drawn proof 0."""
        return 0

    def share(self, votes: int, rival: int, reach: float, alpha: float) -> float:  # noqa: ARG002
        """Return the least share of the draws that the class has on images `reach` away; of a proof without draws 1."""
        return 1.0


class Bands(Proof):
    """Each view shows one band of columns, wrapping round (Levine & Feizi 2020, arXiv:2002.10733).

    A patch touches D = ceil((p + band - 1) / stride) bands of one image: proven if votes - rival >= 2 D.
    """

    name = "bands"
    norm = "patches"
    option = "band"
    band: Side
    stride: Side = 1
    fill: Shade = 0.5

    def radius(self, votes: int, rival: int, eps: float, alpha: float) -> float:  # noqa: ARG002
        """Return the largest side of eps patches: see `Proof.radius`."""
        touched = max(votes - rival, 0) // (2 * round(eps))
        return float(max(touched * self.stride - self.band + 1, 0))

    def views(self, side: int) -> int:
        """Return the number of bands: see `Proof.views`."""
        return side // self.stride


class Masks(Proof):
    """Double masking (Xiang, Mahloujifar & Mittal 2022, PatchCleanser, arXiv:2108.09135).

    Every patch of side `patch` is inside one of `masks` x `masks` squares. Proven if all predictions under two of them
    are the answer. The votes are those under all pairs.
    """

    name = "masks"
    norm = "patches"
    option = "patch"
    patch: Side
    masks: Annotated[int, Field(ge=1, le=16, strict=True)] = 6
    fill: Shade = 0.5

    def places(self, length: int) -> tuple[int, list[int]]:
        """Return the side of the masks on an axis of `length` pixels, and where they begin."""
        stride = -(-(length - self.patch + 1) // self.masks)
        side = min(self.patch + stride - 1, length)
        return side, [*range(0, length - side, stride), length - side]

    def radius(self, votes: int, rival: int, eps: float, alpha: float) -> float:  # noqa: ARG002
        """Return the side of the patch: see `Proof.radius`."""
        return float(self.patch if rival == 0 < votes and eps == 1 else 0)

    def views(self, side: int) -> int:
        """Return the number of pairs of masks, each with itself, too: see `Proof.views`."""
        count = len(self.places(side)[1]) ** 2
        return count * (count + 1) // 2


@lru_cache(maxsize=65536)
def lower_bound(votes: int, draws: int, alpha: float) -> float:
    """Return the one-sided bound of Clopper & Pearson (1934): the quantile alpha of Beta(votes, draws - votes + 1)."""
    from scipy import special  # importing it takes a moment

    return float(special.betaincinv(votes, draws - votes + 1, alpha)) if votes else 0.0


class Noise(Proof):
    """The class of most votes under Gaussian noise (Cohen, Rosenfeld & Kolter 2019, arXiv:1902.02918).

    R = sigma Phi^-1(p), p the `lower_bound`, up to floating point: rounding of x + noise is not part of the proof
    (Voracek & Hein 2023, arXiv:2207.07209).
    """

    name = "noise"
    norm = "l2"
    option = "sigma"
    drawn = True
    sigma: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]

    def radius(self, votes: int, rival: int, eps: float, alpha: float) -> float:  # noqa: ARG002
        """Return the radius in L2, in pixel space, rounded down: see `Proof.radius`."""
        low = lower_bound(votes, votes + rival, alpha)
        if low == 1.0:  # alpha is below the rounding of numbers
            return 0.0
        return floor(self.sigma * NormalDist().inv_cdf(low) * DECIMALS) / DECIMALS if low >= 1 / 2 else -1.0

    def share(self, votes: int, rival: int, reach: float, alpha: float) -> float:
        """Return Phi(Phi^-1(p) - reach / sigma)."""
        low = lower_bound(votes, votes + rival, alpha)
        return NormalDist().cdf(NormalDist().inv_cdf(low) - reach / self.sigma) if 0 < low < 1 else 0.0


class Pixels(Proof):
    """The class of most votes where all but `keep` of the `pixels` are hidden (Levine & Feizi 2020, arXiv:1911.09272).

    Proven for r pixels if p - 1/2 > 1 - C(pixels - r, keep) / C(pixels, keep), p the `lower_bound`.
    """

    name = "pixels"
    norm = "l0"
    option = "keep"
    drawn = True
    keep: Side
    pixels: Annotated[int, Field(ge=1, le=2**22, strict=True)]
    fill: Shade = 0.5

    def radius(self, votes: int, rival: int, eps: float, alpha: float) -> float:  # noqa: ARG002
        """Return how many pixels may change: see `Proof.radius`."""
        if lower_bound(votes, votes + rival, alpha) < 1 / 2:
            return -1.0
        radius = 0
        while self.share(votes, rival, radius + 1, alpha) > 1 / 2:
            radius += 1
        return float(radius)

    def share(self, votes: int, rival: int, reach: float, alpha: float) -> float:
        """Return p - 1 + C(pixels - reach, keep) / C(pixels, keep)."""
        unseen = comb(max(self.pixels - round(reach), 0), self.keep) / comb(self.pixels, self.keep)
        return lower_bound(votes, votes + rival, alpha) - (1 - unseen)


PROOFS: Mapping[str, type[Proof]] = {kind.name: kind for kind in (Bands, Masks, Noise, Pixels)}


def norm_of(options: Mapping[str, Any]) -> str | None:
    """Return the norm of the proof that options of a model choose; None where they choose none."""
    return next((kind.norm for kind in PROOFS.values() if kind.option in options), None)


def proof_of(config: Mapping[str, Any], where: str) -> Proof | None:
    """Return the proof that the configuration of a model states; None where it states none.

    Raises:
        BadInputError: it states one with other fields.
    """
    kind = PROOFS.get(str(config.get("proof")))
    stated = {name: config[name] for name in kind.model_fields if name in config} if kind else {}
    return validate(kind, stated, where) if kind else None
