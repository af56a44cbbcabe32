"""What an audit of each version holds: its checks by level, and its limits. Does not import torch.

Version 2 shows logits on one scale and asks two questions more. Version 3 asks for soft stairs, and asks two of its
attacks of the model's own logits (`docs/decisions/0040`). Version 4 marks what a mechanism changes. Audits of earlier
versions stay valid.
"""

import math
from collections.abc import Iterable, Mapping

from robustbench_kpca.records.audit import Audit, Level

MECHANISM = "mechanism"
"""The check that is a mark: it has no limit."""
INACTIVE = 0.01
"""A mechanism that changes a smaller share of predictions is inactive."""
FIRST = (
    "preflight", "more-steps", "huge-eps", "one-step", "other-loss", "black-box", "gradients", "slope", "ascent",
    "surrogate", "neighbours", "order", "finite", "runs", "untouched",
)  # fmt: skip
FIRST_QUICK = (
    "preflight", "huge-eps", "one-step", "gradients", "slope", "ascent", "neighbours", "finite", "runs", "untouched",
)  # fmt: skip
_THIRD, _THIRD_QUICK = (*FIRST, "reach", "smoothed", "stairs"), (*FIRST_QUICK, "reach", "stairs")

CHECKS: Mapping[int, Mapping[Level, tuple[str, ...]]] = {
    1: {"full": FIRST, "quick": FIRST_QUICK},
    2: {"full": (*FIRST, "reach", "smoothed"), "quick": (*FIRST_QUICK, "reach")},
    3: {"full": _THIRD, "quick": _THIRD_QUICK},
    4: {"full": (*_THIRD, MECHANISM), "quick": (*_THIRD_QUICK, MECHANISM)},
}
"""Version -> level -> the names of its checks, in any order."""
WITHOUT_ATTACKS = ("preflight", "neighbours", "runs", "untouched")
"""The checks of both levels where a task has no attacks for audits, so that nothing asks for masked gradients."""

_LIMITS_1: Mapping[str, float] = {
    "slope_step": 1 / 16, "slope_directions": 16, "slope_error": 0.5, "flat": 1e-3, "same_direction": 0.9999,
    "batch_logits": 1e-4, "repeated_logits": 1e-6, "rounding": 1e-3, "lost_losses": 0.5,
}  # fmt: skip
_LIMITS_2: Mapping[str, float] = {
    **_LIMITS_1, "gap": 5.0, "gap_high": 15.0, "reach_factor": 4.0, "reach_directions": 8, "smoothed_steps": 10,
    "smoothed_draws": 4, "smoothed_noise": 4.0,
}  # fmt: skip
_LIMITS_3: Mapping[str, float] = {**_LIMITS_2, "stairs_shift": 4 / 255, "stairs_cosine": 0.8}
LIMITS: Mapping[int, Mapping[str, float]] = {
    1: _LIMITS_1,
    2: _LIMITS_2,
    3: _LIMITS_3,
    4: _LIMITS_3,
}
"""Version -> name -> the limit that every audit of that version has. A task may add limits of its own."""

FEW = 256
"""Images below which an evaluation has a quick audit by default: there a full one takes most of the time."""
LATEST = 4
_LIMIT_OF: Mapping[str, str] = {"slope": "slopes", "reach": "slopes", "stairs": "slopes", "neighbours": "batch_logits"}
_NONE_ALLOWED = ("preflight", "finite", "runs", "untouched")


def default_level(n: int) -> Level:
    """Return the level of an audit of which nothing else is said, for an evaluation of `n` samples."""
    return "quick" if n < FEW else "full"


def samples_allowed(n: int) -> int:
    """Return how many of `n` samples may fail a check: fewer than 3 or fewer than 5 %, whichever is more.

    About 1 % of the results of an honest attack differ between two seeds or two batch sizes. Then 4 or more of 64
    images, or 3 or more of 32, differ by chance in fewer than 1 of 100 audits.
    """
    return max(3, math.ceil(0.05 * n)) - 1


def summary(audit: Audit) -> str:
    """Name the flags of an audit; of 1 or 2 samples without one, say that no check of them could have one."""
    flags = ", ".join(check.name for check in audit.flags)
    too_few = audit.plan.images <= samples_allowed(audit.plan.images)
    return flags or ("too few images to flag anything" if too_few else "no flags")


def left_to_full(audit: Audit) -> str:
    """Say what a full audit would ask besides; empty for a full one."""
    checks = CHECKS[audit.schema_version]
    more = [name for name in checks["full"] if name not in checks[audit.plan.level]]
    return f"--audit full adds {', '.join(more)}" if more else ""


def slopes_allowed(n: int) -> int:
    """Return for how many of `n` samples the gradient may predict the margin wrongly: kinks make some of them."""
    return max(3, math.ceil(0.25 * n)) - 1


def limits(version: int, n: int) -> dict[str, float]:
    """Return the limits of an audit of `n` samples, those of its task apart."""
    return {"samples": samples_allowed(n), "slopes": slopes_allowed(n), **LIMITS[version]}


def fault(audit: Audit, *, attacked: bool = True) -> str | None:
    """Say what an audit lacks that every audit of its version has; None if nothing.

    Args:
        audit: from a record.
        attacked: whether audits of its task attack the model.
    """
    names = [check.name for check in audit.checks]
    if not names:
        return "its audit has no checks"
    if len(set(names)) < len(names):
        return "its audit has a check twice"
    only_noise = names == ["preflight"] and audit.checks[0].values.get("stochastic") == 1
    wanted = CHECKS[audit.schema_version][audit.plan.level] if attacked else WITHOUT_ATTACKS
    if not only_noise and set(names) != {*wanted}:
        missing, more = sorted({*wanted} - {*names}), sorted({*names} - {*wanted})
        what = f"lacks {', '.join(missing)}" if missing else f"has the unknown {', '.join(more)}"
        return f"its {audit.plan.level} audit of version {audit.schema_version} {what}"
    due = limits(audit.schema_version, audit.plan.images)
    for name, value in due.items():
        if audit.plan.limits.get(name) != value:
            return f"its audit has {audit.plan.limits.get(name)} as limit '{name}', not {value:g}"
    for check in audit.checks:
        limit = _limit(check.name, due)
        if check.values and check.limit != limit:
            return f"check '{check.name}' of its audit allows {check.limit}, not {limit}"
    return None


def _limit(name: str, due: Mapping[str, float]) -> float | None:
    if name == MECHANISM:
        return None
    return 0.0 if name in _NONE_ALLOWED else due[_LIMIT_OF.get(name, "samples")]


def inactive(audits: Iterable[Audit]) -> str:
    """Say that the mechanism of these models is inactive: that few predictions change where it is switched off.

    Empty where it is active, and where no audit asked.
    """
    values = [check.values for audit in audits for check in audit.checks if check.name == MECHANISM]
    changed, number = (
        sum(value for counts in values for name, value in counts.items() if name.startswith(what))
        for what in ("changed", "predictions")
    )
    if not number or changed >= INACTIVE * number:
        return ""
    return f"mechanism is inactive: switched off, it changes {changed:.0f} of {number:.0f} predictions"
