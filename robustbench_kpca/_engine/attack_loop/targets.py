"""Choose the class that each attack must leave or reach, and refuse a set that holds every image, or none."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.attacks.shared.patches import allowed_corners
from robustbench_kpca.protocols.scenario import Attack as AttackScenario
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Labels, Logits


def targets_of(scenario: AttackScenario, seed: int, ids: Sequence[str], logits: Logits, labels: Labels) -> Labels:
    """Return the class that each sample must leave or, if targeted, reach; `ids` are the sample ids of the rows."""
    target, classes = scenario.target, logits.shape[1]
    if target == "random":
        draws = [generator(sample_key(seed, "target", name)) for name in ids]
        steps = [1 + int(draw.integers(classes - 1)) for draw in draws]
        return (labels + torch.tensor(steps, device=labels.device)) % classes
    if target != "none":
        others = logits.scatter(1, labels[:, None], -torch.inf)
        lowest = logits.scatter(1, labels[:, None], torch.inf)
        return others.argmax(1) if target == "runner_up" else lowest.argmin(1)
    return logits.argmax(1) if scenario.labels == "predicted" else labels


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
