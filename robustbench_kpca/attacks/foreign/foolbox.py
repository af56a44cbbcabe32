"""foolbox (Rauber, Zimmermann, Bethge & Brendel 2020, doi:10.21105/joss.02607): its attacks that measure a distance.

A stage's options are the constructor's keyword arguments. The protocol sets the budget and, if the constructor takes
it, `distance` or `constraint`; `tensorboard`, which writes files, is no option.

Attacks with a fixed budget return what foolbox calls the clipped image. Minimisation attacks search without a budget;
only images in the ball count. Each call costs one forward pass more than the attack: foolbox checks its result.

Known error of version 3.3.4, not corrected here: L2FMNAttack does not project onto its ball, so its images are too far.
"""

import inspect
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from robustbench_kpca.attacks.foreign._recipe import EVERY, Recipe, arguments
from robustbench_kpca.protocols.threat import Norm, Threat
from robustbench_kpca.types import Images, Labels

_NORMS: dict[float, Norm] = {float("inf"): "linf", 2: "l2", 1: "l1"}


def names(library: ModuleType) -> list[str]:
    """Return the names of the attacks that measure a distance."""
    base = library.attacks.base.AttackWithDistance
    classes = {name: kind for name, kind in vars(library.attacks).items() if inspect.isclass(kind)}
    return [name for name, kind in classes.items() if issubclass(kind, base) and not inspect.isabstract(kind)]


def recipe(library: ModuleType, name: str) -> Recipe:
    """Return how to run the attack `name`, from its constructor."""
    constructor = getattr(library.attacks, name)
    defaults = arguments(constructor)
    bounded = issubclass(constructor, library.attacks.base.FixedEpsilonAttack)

    def run(
        model: nn.Module,
        x: Images,
        y: Labels,
        threat: Threat,
        seed: int,  # noqa: ARG001 (foolbox uses the global generators, already seeded)
        options: dict[str, Any],
    ) -> Tensor:
        filled: dict[str, Any] = {}
        if "distance" in defaults:
            filled["distance"] = getattr(library.distances, threat.norm)
        if "constraint" in defaults:
            filled["constraint"] = threat.norm
        wrapped = library.PyTorchModel(model, bounds=(0, 1), device=x.device)
        _, clipped, _ = constructor(**filled | options)(wrapped, x, y, epsilons=threat.eps if bounded else None)
        adversarial: Tensor = clipped
        return adversarial

    options = {key: value for key, value in defaults.items() if key not in ("distance", "constraint", "tensorboard")}
    flexible = issubclass(constructor, library.attacks.base.FlexibleDistanceMinimizationAttack)
    norms = EVERY if flexible else _norms(constructor, defaults)
    return Recipe(options, norms, bounded=bounded, run=run)


def _norms(constructor: Any, defaults: dict[str, Any]) -> tuple[Norm, ...]:
    if "constraint" in defaults:
        return ("linf", "l2")
    power = float(constructor.__new__(constructor).distance.p)
    return (_NORMS[power],) if power in _NORMS else EVERY
