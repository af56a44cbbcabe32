"""The limits of the audit's checks, and why each is what it is.

They were fixed before any planted fake was written, and none was moved after.
"""

import math
from collections.abc import Mapping

from robustbench_kpca.audit.preflight import BATCH_MATES, LOST, REPEATED, ROUNDING

# Samples: between two seeds, or two batch sizes, about 1 % of the verdicts of an honest attack differ. Of 64 images 4
# or more then differ by chance in fewer than 1 of 100 audits, and so do 3 or more of 32: what is flagged is no luck.
LEAST_SAMPLES = 3
LEAST_SHARE = 0.05
# A gradient is flat if, to first order, even the furthest point of the ball changes DLR by less than this: a ratio of
# logit gaps, 1 at most for a right answer, which must change by its own size before the answer is wrong.
FLAT = 1e-3
# Two gradients are one if their directions agree to four digits: rounding leaves seven.
SAME_DIRECTION = 0.9999
# Along a random sign direction v the margin changes by g.v, if g is the gradient. The step, half a pixel level at
# 8/255, is short beside the ball that attacks cross, so that curvature is small beside slope, and long beside rounding.
# Half of the change unexplained is no gradient of this function. Kinks may explain some samples: a quarter is allowed.
SLOPE_STEP = 1 / 16  # of eps
SLOPE_DIRECTIONS = 16
SLOPE_ERROR = 0.5
SLOPE_SHARE = 0.25


def samples_allowed(n: int) -> int:
    """Return how many of `n` samples may answer badly: fewer than 3 or than 5 %, whichever is more."""
    return max(LEAST_SAMPLES, math.ceil(LEAST_SHARE * n)) - 1


def slopes_allowed(n: int) -> int:
    """Return how many of `n` samples may have slopes that their gradients do not explain."""
    return max(LEAST_SAMPLES, math.ceil(SLOPE_SHARE * n)) - 1


def limits(n: int, own: Mapping[str, float]) -> dict[str, float]:
    """Every number a value is compared with, as the record of an audit states it; `own` are those of the task."""
    return {
        "samples": samples_allowed(n),
        "slopes": slopes_allowed(n),
        "slope_step": SLOPE_STEP,
        "slope_directions": SLOPE_DIRECTIONS,
        "slope_error": SLOPE_ERROR,
        "flat": FLAT,
        "same_direction": SAME_DIRECTION,
        "batch_logits": BATCH_MATES,
        "repeated_logits": REPEATED,
        "rounding": ROUNDING,
        "lost_losses": LOST,
        **own,
    }
