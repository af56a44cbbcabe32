"""The names of the common corruptions, their groups and their order.

Hendrycks & Dietterich (2019), "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
arXiv:1903.12261, figure 1.
"""

from collections.abc import Iterable

from robustbench_kpca._core.errors import BadInputError

GROUPS: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
}
"""`extra` are the four corruptions that the paper reserves for validation; means over corruptions exclude them."""
EXTRA = GROUPS["extra"]
COMMON: tuple[str, ...] = tuple(name for group, names in GROUPS.items() if group != "extra" for name in names)
"""The 15 corruptions over which mCE averages."""
SEVERITIES = (1, 2, 3, 4, 5)


def group_of(corruption: str) -> str:
    """Return the group of a corruption: `noise`, `blur`, `weather`, `digital`, `extra`; `other` for unknown names."""
    return next((group for group, names in GROUPS.items() if corruption in names), "other")


def canonical(corruptions: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names in the order of `GROUPS`; unknown names follow in the given order."""
    order = {name: place for place, name in enumerate(COMMON + EXTRA)}
    return tuple(sorted(dict.fromkeys(corruptions), key=lambda name: order.get(name, len(order))))


def counted(corruptions: Iterable[str]) -> tuple[str, ...]:
    """Return the names that means over corruptions include: all except the extra ones, unless only those are given.

    Raises:
        BadInputError: no names are given.
    """
    names = tuple(corruptions)
    if not names:
        raise BadInputError("no corruption is given", expected="at least one")
    return tuple(name for name in names if name not in EXTRA) or names
