"""The threat of a protocol for one model: patches as large as its tokens, and no ball that holds every image."""

import math

from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attacks.shared.patches import allowed_corners
from robustbench_kpca.protocols.scenario import Attack as AttackScenario
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images


def threat_for(scenario: AttackScenario, model: nn.Module) -> Threat:
    """Return the threat of a protocol, with patches as large as the model's tokens where it says so."""
    return scenario.threat.on_tokens(token_side(model))


def token_side(model: nn.Module) -> int | None:
    """Return the side of the model's tokens in pixels, if it states one: `patch_size` of it or of a part of it."""
    for module in model.modules():
        size = getattr(module, "patch_size", None)
        sides = {size} if isinstance(size, int) else set(size) if isinstance(size, tuple | list) else set()
        if len(sides) == 1 and isinstance(side := sides.pop(), int):
            return side
    return None


def check_budget(threat: Threat, space: str, images: Images) -> None:
    """Refuse a ball that contains every possible image: its radius was probably meant in other units.

    Raises:
        BadInputError: eps is at least the largest distance between two images in [0, 1]; patches that do not fit.
    """
    if threat.counted:
        allowed_corners(threat, *images.shape[2:])
        return
    values = images[0].numel()
    furthest = math.sqrt(values) if threat.norm == "l2" else values
    bounded = space == "pixel" and threat.clip
    if bounded and threat.norm != "linf" and threat.eps >= furthest:
        raise BadInputError(
            f"eps = {threat.eps:g} in {threat.norm.upper()} contains every image",
            expected=f"less than {furthest:.3g}, the largest distance between two images in [0, 1]",
            fix=f"write {threat.eps:g}/255 if pixel levels were meant",
        )
