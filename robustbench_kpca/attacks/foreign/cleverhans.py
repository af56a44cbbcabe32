"""CleverHans 4.0.0 (Papernot et al. 2018, arXiv:1610.00768): its C&W, in which the images of a batch share a constant.

Its constants have shape (images, 1) and are multiplied with losses of shape (images,), so every image is weighed by the
sum of all constants of its batch, against as many times its distance: by their mean. Which images a batch has changes
what is found. `cw_cleverhans` is the library at batch size one.
"""

import importlib
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from robustbench_kpca.attacks.foreign._recipe import Recipe, arguments, class_count
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Labels

INSTALL = "pip install cleverhans --no-deps"  # its own requirements bring TensorFlow Probability
_FILLED = ("model_fn", "x", "n_classes", "y", "targeted", "clip_min", "clip_max")


def names(library: ModuleType) -> list[str]:  # noqa: ARG001 (the others are the package's own, as `teo2024-*` has them)
    """Return the one attack that the package has at batch size one only."""
    return ["carlini_wagner_l2"]


def recipe(library: ModuleType, name: str) -> Recipe:
    """Return how to run it."""
    attack = getattr(importlib.import_module(f"{library.__name__}.torch.attacks.{name}"), name)

    def run(model: nn.Module, x: Images, y: Labels, threat: Threat, seed: int, options: dict[str, Any]) -> Tensor:  # noqa: ARG001
        adversarial: Tensor = attack(model, x, class_count(model, x), y=y, **options)
        return adversarial

    options = {key: value for key, value in arguments(attack).items() if key not in _FILLED}
    return Recipe(options, ("l2",), bounded=False, run=run)
