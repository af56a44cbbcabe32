"""The kind of protocol `certificate`: how far around each image the answer of a model is proven not to change."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import parse_fraction
from robustbench_kpca.protocols.common import MANY, Common, Count
from robustbench_kpca.protocols.threat import Threat

Draws = Annotated[int, Field(ge=0, le=MANY, strict=True)]


class Certificate(Common):
    """Accuracy that no attack within eps can take away; the model states what its proof is (`models.certified`).

    norm: `patches` of any values, `l0` (pixels that change), `l2`.
    eps: the radius asked about: of patches their number, and `patch` is their side.
    patch, corners: with `patches`, the side in pixels, and `anywhere`.
    selection: draws that choose the class of each image (n0); of a proof without noise 0, as the next two.
    samples: other draws that are counted (n).
    alpha: the probability that the proof of an image is wrong is at most this.
    draws: 1, since noise is drawn as the last fields say.
    """

    kind: Literal["certificate"]
    norm: Literal["patches", "l0", "l2"]
    eps: Annotated[float, BeforeValidator(parse_fraction)]
    selection: Draws
    samples: Draws
    alpha: Annotated[float, Field(ge=0, lt=0.5, allow_inf_nan=False)]
    patch: Count | None = None
    corners: Literal["anywhere"] | None = None

    @property
    def threat(self) -> Threat:
        """The changes of an image that are asked about."""
        return Threat(self.norm, self.eps, patch=self.patch, corners=self.corners)

    @property
    def radius(self) -> float:
        """The radius, as outcomes have it: the side of patches, else eps."""
        return float(self.patch or self.eps)

    @model_validator(mode="after")
    def _check(self) -> "Certificate":
        assert self.threat
        drawn = self.selection > 0, self.samples > 0, self.alpha > 0
        if drawn != (self.norm in ("l0", "l2"),) * 3 or self.draws != 1:
            raise BadInputError(
                f"norm = '{self.norm}' with selection = {self.selection}, samples = {self.samples}, "
                f"alpha = {self.alpha:g} and draws = {self.draws}",
                expected="draws = 1, and the others above 0 with norm = 'l0' or 'l2', else 0",
            )
        return self
