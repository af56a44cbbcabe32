"""pyautoattack, a repackaging of Croce & Hein's AutoAttack (arXiv:2003.01690): its ensembles and its single attacks.

`standard`, `plus` and `rand` are the authors' ensembles, and have no options. `apgd-ce`, `apgd-dlr`, `apgd-t`, `fab`,
`fab-t` and `square` take the keyword arguments of the authors' classes; the defaults are those of `standard`. With
fewer than ten classes, all wrong classes are targets; the authors' program fails in this case.

The ensembles check the model first: seven passes of every batch, whose warnings are not recorded here. `rand` averages
its gradients over 20 draws, the others over one.
"""

import contextlib
import logging
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from robustbench_kpca.attacks.foreign._recipe import EVERY, Recipe, Run, arguments, class_count
from robustbench_kpca.protocols.threat import Norm, Threat
from robustbench_kpca.types import Images, Labels

_NORM_NAMES: dict[Norm, str] = {"linf": "Linf", "l2": "L2", "l1": "L1"}
_ENSEMBLES = ("standard", "plus", "rand")
_SINGLE: dict[str, tuple[str, dict[str, Any]]] = {  # name -> attribute of AutoAttack, settings
    "apgd-ce": ("apgd", {"loss": "ce", "n_restarts": 1}),
    "apgd-dlr": ("apgd", {"loss": "dlr", "n_restarts": 1}),
    "apgd-t": ("apgd_targeted", {"n_target_classes": 9}),
    "fab": ("fab", {"targeted": False, "n_restarts": 1}),
    "fab-t": ("fab", {"targeted": True, "n_restarts": 1, "n_target_classes": 9}),
    "square": ("square", {"resc_schedule": False}),
}
_FILLED = ("predict", "norm", "eps", "seed", "device", "verbose", "is_tf_model", "logger", "topk", "loss_fn")
_FIXED = ("loss", "targeted")


def names(library: ModuleType) -> list[str]:  # noqa: ARG001 (the names are not classes of the library)
    """Return the names of the ensembles and the single attacks."""
    return [*_ENSEMBLES, *_SINGLE]


def recipe(library: ModuleType, name: str) -> Recipe:
    """Return how to run an ensemble or a single attack."""
    if name in _ENSEMBLES:
        return Recipe({}, EVERY, bounded=True, run=_ensemble(library, name))
    attribute, settings = _SINGLE[name]
    constructor = type(getattr(library.AutoAttack(nn.Identity(), eps=0.1, seed=0), attribute))
    defaults = arguments(constructor)

    def run(model: nn.Module, x: Images, y: Labels, threat: Threat, seed: int, options: dict[str, Any]) -> Tensor:
        filled = {key: value for key, value in settings.items() if key in defaults} | options
        if "n_target_classes" in filled:
            filled["n_target_classes"] = min(filled["n_target_classes"], class_count(model, x) - 1)
        common = {"norm": _NORM_NAMES[threat.norm], "eps": threat.eps, "seed": seed, "device": x.device}
        adversarial: Tensor = constructor(model, **common, **filled).perturb(x, y)
        return adversarial

    options = {key: settings.get(key, value) for key, value in defaults.items() if key not in _FILLED + _FIXED}
    return Recipe(options, EVERY, bounded=attribute != "fab", run=run)


def _ensemble(library: ModuleType, version: str) -> Run:
    def run(
        model: nn.Module,
        x: Images,
        y: Labels,
        threat: Threat,
        seed: int,
        options: dict[str, Any],  # noqa: ARG001
    ) -> Tensor:
        with _silent():
            attack = library.AutoAttack(
                model, norm=_NORM_NAMES[threat.norm], eps=threat.eps, version=version, seed=seed, device=x.device
            )
            targets = class_count(model, x) - 1
            for part in (attack.apgd_targeted, attack.fab):
                part.n_target_classes = min(part.n_target_classes, targets)
            adversarial: Tensor = attack.run_standard_evaluation(x, y, batch_size=len(x))[0]
        return adversarial

    return run


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    logger = logging.getLogger("auto-attack")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
