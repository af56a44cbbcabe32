"""What has to be known about an attack of another library before it can be run."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from robustbench_kpca.protocols.threat import Norm, Threat
from robustbench_kpca.types import Images, Labels

EVERY: tuple[Norm, ...] = ("linf", "l2", "l1")
Run = Callable[[nn.Module, Images, Labels, Threat, int, dict[str, Any]], Tensor]
"""(model, images, labels, threat, seed, options) to adversarial images."""


@dataclass(frozen=True)
class Recipe:
    """How to run one attack.

    options: the keyword arguments that a stage may give, with their defaults.
    norms: those that the attack searches in.
    bounded: whether it promises images inside the ball. If not, an image outside does not count.
    """

    options: dict[str, Any]
    norms: tuple[Norm, ...]
    bounded: bool
    run: Run


def arguments(callable_: Callable[..., Any]) -> dict[str, Any]:
    """Return the named arguments of a constructor, with their defaults (`inspect.Parameter.empty` for none)."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = inspect.signature(callable_).parameters.values()
    return {one.name: one.default for one in found if one.kind in named and one.name != "self"}


def class_count(model: nn.Module, x: Images) -> int:
    """Ask the model how many classes it knows; costs a pass on one image."""
    return int(model(x[:1]).shape[1])
