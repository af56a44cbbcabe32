"""Attacks made of a function: of one step, or of the whole attack."""

from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any

import torch
from pydantic import StrictBool
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks.foreign import Foreign, Recipe, arguments
from robustbench_kpca.attacks.shared.one_gradient import OneGradient
from robustbench_kpca.protocols.scenario import Count
from robustbench_kpca.protocols.threat import BallNorm, Threat
from robustbench_kpca.types import Images, Keys, Labels, Query, State

_OF_THE_BALL = ("eps", "norm", "seed")


def one_gradient(
    *,
    steps: int,
    random_start: bool = False,
    memory: Sequence[str] = (),
    norms: Sequence[BallNorm] = ("linf", "l2"),
    many_labels: bool = False,
) -> Callable[[Callable[[Images, Images, State], Images]], type]:
    """Make an attack of a function `step(x, gradient, state) -> x` that is called with one gradient a step.

    The result is projected onto ball and box. `gradient` is that of the cross-entropy. `state` holds tensors of the
    samples, the first axis: `clean`, `y`, `step` (from 0), `eps` (to multiply images with), and the images named in
    `memory`, which are 0 at first. The function may replace these: `state["momentum"] = ...`.

    Args:
        steps: how often it is called; an option of the attack, with this as its default.
        random_start: begin at a random point of the ball; an option, too.
        memory: names of images that a sample remembers.
        norms: norms of the balls that it can search.
        many_labels: whether it may attack samples with many labels, such as scenes.

    Examples:
        >>> from robustbench_kpca import one_gradient
        >>> @one_gradient(steps=5)
        ... def climb(x, gradient, state):
        ...     return x + 0.25 * state["eps"] * gradient.sign()
        >>> climb(steps=3)
        climb(steps=3, random_start=False)
    """

    def attack(step: Callable[[Images, Images, State], Images]) -> type:
        def remembered(_: Any, x: Images, threat: Threat) -> State:
            return {"eps": x.new_full((len(x), 1, 1, 1), threat.eps)} | {name: torch.zeros_like(x) for name in memory}

        def propose(_: Any, x: Images, gradient: Images, state: State, threat: Threat) -> Images:  # noqa: ARG001
            return step(x, gradient, state)

        body = {"norms": tuple(norms), "many_labels": many_labels, "memory": remembered, "propose": propose}
        options = {"steps": (Count, steps), "random_start": (StrictBool, random_start)}
        return _class_of(step, (OneGradient,), body, options)

    return attack


def whole_attack(
    *, norms: Sequence[BallNorm] = ("linf",), bounded: bool = True
) -> Callable[[Callable[..., Images]], type]:
    """Make an attack of a function `(model, x, y, ...) -> x_adv`; its passes through the model are counted.

    It is called once for a batch, with images in [0, 1], and all global generators seeded. Parameters called `eps`,
    `norm` or `seed` get those of the protocol; all further ones are options of the attack. Samples of a batch share its
    passes evenly and may depend on each other: write a step, or a class, where that matters.

    Args:
        norms: norms of the balls that it can search.
        bounded: whether what it returns lies in the ball: an image outside is an error. If not, it does not count.

    Examples:
        >>> from robustbench_kpca import whole_attack
        >>> @whole_attack()
        ... def brighten(model, x, y, eps, share=1.0):
        ...     return (x + share * eps).clamp(0, 1)
        >>> brighten(share=0.5)
        brighten(share=0.5)
    """

    def attack(function: Callable[..., Images]) -> type:
        _, _, _, *parameters = arguments(function).items()
        options = {name: default for name, default in parameters if name not in _OF_THE_BALL}

        def run(model: Any, x: Images, y: Labels, threat: Threat, *, seed: int, options: dict[str, Any]) -> Images:
            of_protocol = {"eps": threat.eps, "norm": threat.norm, "seed": seed}
            shared = {name: of_protocol[name] for name, _ in parameters if name in of_protocol}
            return function(model, x, y, **shared, **options)

        recipe = Recipe(options, tuple(norms), bounded, run)

        def whole(self: Any) -> Foreign:
            return Foreign(function.__name__, recipe, {name: getattr(self, name) for name in options})

        def start(self: Any, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
            return whole(self).start(x, y, threat, keys)

        def step(self: Any, state: State, threat: Threat, query: Query) -> State:
            return whole(self).step(state, threat, query)

        body = {"start": start, "step": step, "__post_init__": lambda self: whole(self).check()}
        return _class_of(function, (), body, {name: (Any, default) for name, default in options.items()})

    return attack


def _class_of(
    function: Callable[..., Any], bases: tuple[type, ...], body: dict[str, Any], options: dict[str, tuple[Any, Any]]
) -> type:
    """Return a dataclass with the name, the module and the docstring of a function, and the options as its fields."""
    names = ("__module__", "__qualname__", "__doc__")
    defaults = {name: default for name, (_, default) in options.items() if default is not Parameter.empty}
    kinds = {"__annotations__": {name: kind for name, (kind, _) in options.items()}}
    copied = {name: getattr(function, name) for name in names}
    attack_class = type(function.__name__, bases, copied | kinds | defaults | body)
    return dataclass(frozen=True, config=FORBID)(attack_class)
