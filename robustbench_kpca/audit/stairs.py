"""The check `stairs`, which asks whether the gradient is nearly the same one where the image is a little brighter.

Where inputs are rounded by steep sigmoids or tanh, logits are nearly constant between steps and steep on them. Slopes
have the right sign and the right mean, so no question about averages sees it. But a few levels of brightness move every
pixel along its stair, and other pixels have a slope then.
"""

import torch
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.attacks.shared.losses import cross_entropy
from robustbench_kpca.audit.answers import answer, count
from robustbench_kpca.audit.context import AuditContext
from robustbench_kpca.audit.limits import STAIRS_COSINE, STAIRS_SHIFTS, slopes_allowed
from robustbench_kpca.records.audit import Check
from robustbench_kpca.types import Images, Mask


def stairs(context: AuditContext) -> Check:
    """Compare the gradient of cross-entropy with those of the image with 2 and 4 levels of 255 added to all its values.

    `turned` are images where the cosine between two of them is below `STAIRS_COSINE`. Images are moved into [0, 1] less
    the largest shift first. The shifts do not depend on eps, since the height of a stair does not.
    """
    images, labels = context.images[context.correct].clamp(0, 1 - max(STAIRS_SHIFTS)), context.labels[context.correct]
    first, *brighter = (context.gradients(images + by, labels, cross_entropy).gradient for by in (0.0, *STAIRS_SHIFTS))
    turned = torch.stack([_turned(first, other) for other in brighter]).any(0)
    return answer(
        "stairs",
        {"turned": count(turned)},
        slopes_allowed(len(context)),
        f"on {count(turned)} of {len(context)} images the gradient is another one where the image is a little brighter",
        "inputs are rounded, if softly: most pixels have no slope, so gradients are those of a few (gradient masking)",
    )


def _turned(gradient: Images, other: Images) -> Mask:
    """Tell of which images one gradient points elsewhere than the other; not where both are zero."""
    both = [side.flatten(1).double() for side in (gradient, other)]
    zero = torch.stack([(side == 0).all(1) for side in both]).all(0)
    first, second = (side / side.abs().amax(1, keepdim=True).clamp_min(1e-300) for side in both)  # no square becomes 0
    return (F.cosine_similarity(first, second, dim=1) < STAIRS_COSINE) & ~zero
