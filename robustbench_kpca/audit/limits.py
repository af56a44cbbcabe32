"""The limits of the audit checks, and the reason for each; `records/audit_versions.py` holds them by version.

The limits were fixed before the planted fakes were tried, but for two corrections afterwards: losses rounded to zero
are judged on the shown scale, and `GAP_HIGH` caps that scale (docs/decisions/0040).
"""

from collections.abc import Mapping

from robustbench_kpca.records import audit_versions
from robustbench_kpca.records.audit_versions import LATEST, LIMITS, samples_allowed, slopes_allowed

__all__ = ["samples_allowed", "slopes_allowed"]

_LATEST = LIMITS[LATEST]
# A gradient is flat if, to first order, no point of the ball changes DLR by more than this. DLR is a ratio of logit
# gaps, at most 1 for a correct prediction, and must change by its own size before the prediction is wrong.
FLAT = _LATEST["flat"]
# Two gradients are equal if the cosine of their directions exceeds this; rounding keeps seven digits.
SAME_DIRECTION = _LATEST["same_direction"]
# Along a random sign direction v the margin changes by g.v if g is its gradient. The step, half a pixel level at 8/255,
# is short compared with the ball, so that curvature is small, and long compared with rounding. If half of the change is
# not explained, g is not the gradient of the margin. Kinks can cause this on some samples: a quarter is allowed.
SLOPE_STEP = _LATEST["slope_step"]  # of eps
SLOPE_DIRECTIONS = int(_LATEST["slope_directions"])
SLOPE_ERROR = _LATEST["slope_error"]
# Logits are shown so that the median gap between the two largest is this: cross-entropy is not rounded, and the classes
# near the top weigh more than the rest. The gap that 95 % of the images stay below is at most the second number: single
# precision rounds a cross-entropy to zero from about 16.6 on.
GAP, GAP_HIGH = _LATEST["gap"], _LATEST["gap_high"]
# At eps and at a quarter of it, what happens may be so many times more, or less, than the gradient says: networks are
# curved, and no honest one should exceed it at both radii.
REACH_FACTOR = _LATEST["reach_factor"]
REACH_DIRECTIONS = int(_LATEST["reach_directions"])
REACH_RADII = (1.0, 0.25)  # of eps
# Where all values of an image are larger by so many levels, the cosine between the gradients is at least that. On 52
# honest networks it is not on 8 of 3,328 images (docs/trust.md). One shift alone could be the height of a stair, after
# which the gradient is the same one.
STAIRS_SHIFTS = (_LATEST["stairs_shift"] / 2, _LATEST["stairs_shift"])
STAIRS_COSINE = _LATEST["stairs_cosine"]
# The smoother copy: the gradient is averaged over so many images with noise of up to so many eps.
SMOOTHED_STEPS = int(_LATEST["smoothed_steps"])
SMOOTHED_DRAWS = int(_LATEST["smoothed_draws"])
SMOOTHED_NOISE = _LATEST["smoothed_noise"]


def limits(n: int, of_task: Mapping[str, float]) -> dict[str, float]:
    """Return all limits, as the record of an audit stores them; `of_task` are those of the task."""
    return {**audit_versions.limits(LATEST, n), **of_task}
