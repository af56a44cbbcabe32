"""Adversarial images as an 8-bit file keeps them: every value is a multiple of 1/255, and the ball still holds them."""

import torch
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attacks.shared.ball import distance, furthest
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images

LEVELS = 255
_HALVINGS = 30


def require_levels(images: Images) -> None:
    """Refuse clean images that no 8-bit file holds: rounding would change pixels that the attack has not changed.

    Raises:
        BadInputError: such images.
    """
    if not torch.equal(images, (images * LEVELS).round() / LEVELS):
        raise BadInputError(
            "storage = 'png' for images whose values are no multiples of 1/255",
            expected="images as 8-bit files hold them, such as uint8 arrays",
            fix="round them first: (images * 255).round() / 255",
        )


def as_stored(image: Tensor, clean: Tensor, threat: Threat) -> Tensor:
    """Round an image to 8 bits, inside the ball around the clean one.

    Each value becomes the nearest level. Where the image would leave the ball, it is drawn towards the clean image, on
    the line between both, just so far that the rounded image is inside. The clean image has levels as values, so no
    change of a value grows on that way, and at its end the change is 0.

    Args:
        image: in the ball and in [0, 1], shape (channels, height, width).
        clean: multiples of 1/255 in [0, 1], of the same shape.
        threat: the ball.
    """
    start = (clean.double() * LEVELS).round()
    change = image.double() * LEVELS - start

    def rounded(share: float) -> Tensor:
        return ((start + share * change).round() / LEVELS).to(image.dtype)

    def outside(share: float) -> bool:
        reach = distance(rounded(share)[None], clean[None], threat.norm)
        return not threat.counted and float(reach) > furthest(threat.eps)

    low, high = 0.0, 1.0
    if not outside(high):
        return rounded(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if outside(middle) else (middle, high)
    return rounded(low)
