"""torchattacks (Kim 2020, arXiv:2010.01950): every attack it exports, by its class name.

A stage's options are the constructor's keyword arguments. The protocol sets `eps` (or `max_epsilon`) and `norm`,
which cannot be options. If not given, `seed` is set, and `n_classes`, which costs a forward pass.

Known errors of version 3.5.1, not corrected here (docs/limits.md):

- CW masks logits with zeros, so that adding a constant to all of them changes its result; it cannot move pixels that
  are exactly 0 or 1; it does not search for c and stops the whole batch at once.
- SPSA makes one step by default (`nb_iter`), and its targeted form steps the wrong way (the adapter is untargeted).
- Iterative attacks return the last iterate, not the best one; MIFGSM divides by zero where a gradient vanishes.
"""

from types import ModuleType
from typing import Any

from torch import Tensor, nn

from robustbench_kpca.attacks.foreign._recipe import EVERY, Recipe, arguments, class_count
from robustbench_kpca.protocols.threat import Norm, Threat
from robustbench_kpca.types import Images, Labels

_NORM_NAMES: dict[Norm, str] = {"linf": "Linf", "l2": "L2", "l1": "L1"}
_BUDGETS = ("eps", "max_epsilon")
_NORMS: dict[str, tuple[Norm, ...]] = {  # attacks whose constructor takes no norm; others with a budget are L-infinity
    "PGDL2": ("l2",),
    "PGDRSL2": ("l2",),
    "CW": ("l2",),
    "DeepFool": ("l2",),
    "EADL1": ("l1",),
    "EADEN": ("l1", "l2"),
}


def names(library: ModuleType) -> list[str]:
    """Return the names of the attacks, without wrappers of other attacks."""
    return [name for name in library.__all__ if name not in library.__wrapper__]


def recipe(library: ModuleType, name: str) -> Recipe:
    """Return how to run the attack `name`, from its constructor."""
    constructor = getattr(library, name)
    defaults = arguments(constructor)
    budget = next((key for key in _BUDGETS if key in defaults), None)

    def run(model: nn.Module, x: Images, y: Labels, threat: Threat, seed: int, options: dict[str, Any]) -> Tensor:
        filled: dict[str, Any] = {} if budget is None else {budget: threat.eps}
        if "norm" in defaults:
            filled["norm"] = _NORM_NAMES[threat.norm]
        if "seed" in defaults:
            filled["seed"] = seed
        if "n_classes" in defaults and "n_classes" not in options:
            filled["n_classes"] = class_count(model, x)
        adversarial: Tensor = constructor(model, **filled | options)(x, y)
        return adversarial

    if "norm" in defaults:
        norms: tuple[Norm, ...] = ("linf", "l2")
    else:
        norms = _NORMS.get(name, EVERY if budget is None else ("linf",))
    options = {key: value for key, value in defaults.items() if key not in ("model", "norm", *_BUDGETS)}
    return Recipe(options, norms, bounded=budget is not None and name != "FAB", run=run)
