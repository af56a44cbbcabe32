"""The description of an attack of another library: its options, norms and how to run it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from robustbench_kpca.protocols.threat import Norm, Threat
from robustbench_kpca.types import Images, Labels

EVERY: tuple[Norm, ...] = ("linf", "l2", "l1")


@runtime_checkable
class Run(Protocol):
    """Makes adversarial images."""

    def __call__(
        self, model: nn.Module, x: Images, y: Labels, threat: Threat, *, seed: int, options: dict[str, Any]
    ) -> Tensor: ...


@dataclass(frozen=True)
class Recipe:
    """How to run one attack.

    options: keyword arguments that a stage may set, with their defaults.
    norms: norms that the attack supports.
    bounded: whether the attack always returns images inside the ball. If not, an image outside does not count.
    """

    options: dict[str, Any]
    norms: tuple[Norm, ...]
    bounded: bool
    run: Run


def arguments(callable_: Callable[..., Any]) -> dict[str, Any]:
    """Return the named arguments of a constructor, with their defaults (`inspect.Parameter.empty` for none)."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(callable_).parameters.values()
    return {each.name: each.default for each in parameters if each.kind in named and each.name != "self"}


def class_count(model: nn.Module, x: Images) -> int:
    """Return the model's number of classes; costs a forward pass on one image."""
    return int(model(x[:1]).shape[1])
