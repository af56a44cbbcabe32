"""The limits of the audit checks, and the reason for each.

All limits were fixed before the planted fakes of the tests were written; none was changed afterwards.
"""

import math
from collections.abc import Mapping

from robustbench_kpca.audit.preflight import BATCH_MATES, LOST, REPEATED, ROUNDING

# Samples: about 1 % of the results of an honest attack differ between two seeds or two batch sizes. Then 4 or more of
# 64 images, or 3 or more of 32, differ by chance in fewer than 1 of 100 audits.
LEAST_SAMPLES = 3
LEAST_SHARE = 0.05
# A gradient is flat if, to first order, no point of the ball changes DLR by more than this. DLR is a ratio of logit
# gaps, at most 1 for a correct prediction, and must change by its own size before the prediction is wrong.
FLAT = 1e-3
# Two gradients are equal if the cosine of their directions exceeds this; rounding keeps seven digits.
SAME_DIRECTION = 0.9999
# Along a random sign direction v the margin changes by g.v if g is its gradient. The step, half a pixel level at 8/255,
# is short compared with the ball, so that curvature is small, and long compared with rounding. If half of the change is
# not explained, g is not the gradient of the margin. Kinks can cause this on some samples: a quarter is allowed.
SLOPE_STEP = 1 / 16  # of eps
SLOPE_DIRECTIONS = 16
SLOPE_ERROR = 0.5
SLOPE_SHARE = 0.25


def samples_allowed(n: int) -> int:
    """Return how many of `n` samples may fail a check: fewer than 3 or fewer than 5 %, whichever is more."""
    return max(LEAST_SAMPLES, math.ceil(LEAST_SHARE * n)) - 1


def slopes_allowed(n: int) -> int:
    """Return how many of `n` samples may have margin changes that the gradient does not explain."""
    return max(LEAST_SAMPLES, math.ceil(SLOPE_SHARE * n)) - 1


def limits(n: int, own: Mapping[str, float]) -> dict[str, float]:
    """Return all limits, as the record of an audit stores them; `own` are the limits of the task."""
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
